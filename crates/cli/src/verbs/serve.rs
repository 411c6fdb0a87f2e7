//! `temper serve`: the embedded engine behind an OpenAI-compatible server.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64},
    },
};

use clap::Args;
use temper_agent::model::secret::Secret;
use tokio::{net::TcpListener, sync::watch};

use crate::{
    clock,
    engines::EngineArgs,
    error::CliError,
    exit_code, output,
    places::Places,
    serve::{
        self,
        server::{Counts, Server},
    },
    verbs::model::{args::SourceArgs, locate::locate},
};

/// `temper serve`
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Which model.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: String,
    /// The port; 0 takes one that is free
    #[arg(long, default_value_t = 8000, value_name = "PORT")]
    pub port: u16,
    /// The model's name in requests [default: its own]
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Ask clients for the key in this environment variable
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_variable: Option<String>,
    /// Load an adapter, a PEFT folder, under a name. May be given more than once
    #[arg(long, value_name = "NAME=DIR")]
    pub lora: Vec<String>,
    /// Let clients load adapters from below this directory
    #[arg(long, value_name = "DIR")]
    pub lora_root: Option<PathBuf>,
    /// The engine.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Serves until the process is asked to stop.
pub fn run(args: &ServeArgs, places: &Places) -> Result<u8, CliError> {
    let adapters = args
        .lora
        .iter()
        .map(|text| named_folder(text))
        .collect::<Result<Vec<_>, _>>()?;
    let key = match &args.api_key_variable {
        Some(variable) => Some(key(variable)?),
        None => None,
    };
    let model = locate(&args.source.model, &args.source.hub, places)?;
    let embedded = args.engine.open(&model, places, 64)?;
    let server = Arc::new(Server {
        engine: embedded.engine,
        tokenizer: embedded.tokenizer,
        name: args.served_model_name.clone().unwrap_or(embedded.name),
        config: embedded.config,
        template: embedded.template,
        key,
        adapter_root: args.lora_root.clone(),
        adapters: Mutex::new(BTreeMap::new()),
        started: clock::unix_seconds(),
        counts: Counts::default(),
        stopping: AtomicBool::new(false),
        next: AtomicU64::new(0),
    });
    for (name, path) in &adapters {
        server.load_adapter(name, path).map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("load the adapter {name}: {}", error.message),
            )
        })?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let address = (args.host.as_str(), args.port);
        let listener = TcpListener::bind(address).await.map_err(|error| {
            CliError::new(
                exit_code::ENVIRONMENT,
                format!("listen on {}:{}: {error}", args.host, args.port),
            )
            .hint("another port: --port N, or 0 for any that is free")
        })?;
        let bound = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            stop_signal().await;
            let _ = stop.send(true);
            // A second signal means now.
            stop_signal().await;
            std::process::exit(i32::from(exit_code::INTERRUPTED));
        });
        output::data(&format!("http://{bound}/v1\n"));
        output::note(&format!("serving {} at http://{bound}/v1", server.name));
        serve::run(server, listener, stopped).await;
        output::note("stopped");
        Ok(exit_code::SUCCESS)
    })
}

async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

fn key(variable: &str) -> Result<String, CliError> {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() {
        return Err(CliError::new(
            exit_code::USAGE,
            format!("read the key: the environment variable {variable} is empty or not set"),
        ));
    }
    // The same checks as for a key that is sent: no line breaks, no control characters.
    Secret::new(&text).map_err(|error| CliError::new(exit_code::USAGE, error))?;
    Ok(text)
}

fn named_folder(text: &str) -> Result<(String, PathBuf), CliError> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.into()))
        }
        _ => Err(CliError::new(
            exit_code::USAGE,
            format!("read --lora {text:?}: expected NAME=DIR"),
        )),
    }
}
