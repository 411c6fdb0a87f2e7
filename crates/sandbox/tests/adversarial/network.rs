//! Looking for a way out over the network.

use std::{
    io::ErrorKind,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use crate::common::*;

#[test]
fn loopback_is_its_own_and_nothing_leads_out() {
    in_sandbox(|sandbox| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = output(
            sandbox,
            &format!(
                "/usr/bin/python3 - <<'END'\n\
                 import errno, socket\n\
                 def tried(name, f):\n\
                 \x20   try: f(); print(name, 'worked')\n\
                 \x20   except OSError as e: print(name, errno.errorcode.get(e.errno, e))\n\
                 tried('host loopback', lambda: socket.create_connection(('127.0.0.1', {port}), 2))\n\
                 tried('outside', lambda: socket.create_connection(('192.0.2.1', 80), 2))\n\
                 tried('metadata', lambda: socket.create_connection(('169.254.169.254', 80), 2))\n\
                 tried('datagram', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53)))\n\
                 tried('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))\n\
                 tried('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))\n\
                 tried('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))\n\
                 tried('alg', lambda: socket.socket(38, socket.SOCK_SEQPACKET))\n\
                 print([name for _, name in socket.if_nameindex()])\n\
                 END"
            ),
        );
        assert_eq!(
            text,
            "host loopback ECONNREFUSED\noutside ENETUNREACH\nmetadata ENETUNREACH\n\
             datagram ENETUNREACH\nraw EPERM\npacket EAFNOSUPPORT\nvsock EAFNOSUPPORT\n\
             alg EAFNOSUPPORT\n['lo']\n"
        );
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let text = output(
            sandbox,
            "/usr/bin/python3 -c 'import socket\n\
             try: print(socket.gethostbyname(\"example.org\"))\n\
             except OSError: print(\"no name\")\n\
             print(socket.gethostbyname(\"localhost\"))'",
        );
        assert_eq!(text, "no name\n127.0.0.1\n");
    });
}

#[test]
fn abstract_sockets_of_the_host_are_out_of_reach() {
    if waived() {
        return;
    }
    let name = format!("temper-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let attack = format!(
        "/usr/bin/python3 -c 'import socket\n\
         try: socket.socket(socket.AF_UNIX).connect(\"\\0{name}\"); print(\"connected\")\n\
         except OSError as e: print(type(e).__name__)'"
    )
    .replace('\0', "\\0");
    // With the host's network only Landlock is in the way.
    for network in [temper_sandbox::Network::None, temper_sandbox::Network::Host] {
        let mut spec = spec(None);
        spec.network = network;
        spec.demand
            .0
            .remove(&temper_sandbox::Protection::NetworkIsolated);
        let text = output(&mut *start(&spec), &attack);
        assert!(
            ["ConnectionRefusedError\n", "PermissionError\n"].contains(&text.as_str()),
            "{text}"
        );
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
