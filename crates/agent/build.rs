//! Compiles the edit tool, so that it can be embedded and laid into sandboxes.

use std::{env, path::PathBuf, process::Command};

fn main() {
    let source = PathBuf::from("../edit-tool/src/main.rs");
    println!("cargo::rerun-if-changed=../edit-tool/src");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(temper_edit_tool_static)");
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
        .join("edit_via_str_replace");
    let compile = |link_statically: bool| {
        let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
        rustc
            .args(["--edition", "2024", "--crate-name", "edit_via_str_replace"])
            .args([
                "-C",
                "opt-level=s",
                "-C",
                "panic=abort",
                "-C",
                "strip=symbols",
            ])
            .arg("--target")
            .arg(env::var_os("TARGET").expect("cargo sets TARGET"));
        if link_statically {
            rustc.args(["-C", "target-feature=+crt-static"]);
        }
        rustc.arg("-o").arg(&output).arg(&source);
        rustc.output().expect("rustc, which compiles this, starts")
    };
    // A machine without a static C library still gets a tool, which then needs the sandbox's.
    if compile(true).status.success() {
        println!("cargo::rustc-cfg=temper_edit_tool_static");
        return;
    }
    let dynamic = compile(false);
    assert!(
        dynamic.status.success(),
        "the edit tool compiles:\n{}",
        String::from_utf8_lossy(&dynamic.stderr)
    );
    println!(
        "cargo::warning=the edit tool is linked dynamically, as no static C library was found"
    );
}
