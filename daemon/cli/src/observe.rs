//! `nodelb watch`: prints every change of Services and EndpointSlices with the differences, directly from an apiserver,
//! whether or not the daemon runs. It needs the raw objects, which the source does not keep; it holds at most
//! [`cache::MAX_OBJECTS`] of them.
//!
//! ```text
//!  connected (one link) ──> follow (Service) ──────┐
//!                  └──> follow (EndpointSlice) ┴──> Line ──> stdout
//! ```
//!
//! When the link breaks, the command prints one line and opens another link, where each kind continues at its last
//! version. If the apiserver no longer has that version, the command lists the kind again and prints what happened in
//! between.

mod cache;
mod follow;
mod line;

use nodelb_core::model::service::ServiceName;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use nodelb_core::text;
use nodelb_host::clock::ticking;
use nodelb_kube::apiserver::connection::error::LinkError;
use nodelb_kube::apiserver::one_shot::{self, ConnectError, Connected};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use self::follow::Follower;
use self::line::Line;
use crate::answer::now;
use crate::client;
use crate::endpoints::{Endpoints, ReadConfiguration};
use crate::exit::{Code, Failure};
use crate::{Output, WatchOptions, unwritten};

/// Pause between two attempts to reach an apiserver.
const PAUSE: Duration = Duration::from_secs(2);

/// Two refusals of permission within this time are one problem, not a coincidence.
const ONE_TROUBLE: Duration = Duration::from_secs(30);

/// The command checks at this interval that its output still has a reader while there is nothing to write.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of lines that wait to be written.
const QUEUE: usize = 256;

/// Prints changes until the command is interrupted or its output has no reader any more.
///
/// # Errors
/// When Kubernetes is not configured, the configuration or the credentials have a problem, or the output cannot be
/// written. [`Code::Permission`] when the user may not list or watch, also at the second attempt.
pub(crate) fn watch(
    options: &WatchOptions,
    service: Option<&ServiceName>,
    configured: ReadConfiguration,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let endpoints = Endpoints::new(&options.connection, configured)?;
    if endpoints.settings.is_none() {
        let message = "Kubernetes is not configured: set [kubernetes] in the configuration, or use --kubeconfig";
        return Err(Failure::message(Code::Config, message));
    }
    let runtime = client::runtime()?;
    let done = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        let mut look = ticking(LOOK_EVERY);
        let (lines_in, mut lines) = mpsc::channel(QUEUE);
        let mut watching = std::pin::pin!(go_on(service, &endpoints, lines_in));
        loop {
            tokio::select! {
                ended = &mut watching => return ended,
                Some(line) = lines.recv() => write(&line, options.output, out)?,
                _ = look.tick() => out.flush().map_err(|error| unwritten(&error))?,
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            }
        }
    });
    // A resolver that hangs must not prevent the command from ending.
    runtime.shutdown_background();
    done
}

fn write(line: &Line, output: Output, out: &mut dyn Write) -> Result<(), Failure> {
    let text = match output {
        Output::Text => line.to_text(),
        Output::Json => line.to_json().context("a line cannot be written as JSON")?,
    };
    out.write_all(text.as_bytes()).map_err(|error| unwritten(&error))
}

async fn go_on(service: Option<&ServiceName>, endpoints: &Endpoints, lines: mpsc::Sender<Line>) -> Result<(), Failure> {
    let mut followers = Follower::all(service, &endpoints.selection);
    let (mut last, mut forbidden) = (String::new(), None);
    loop {
        match connected(endpoints).await {
            Ok(connected) => {
                last.clear();
                notice(&lines, reached(&connected)).await;
                let begun = Instant::now();
                let error = follow::over(&connected, &mut followers, &lines).await;
                forbidden = match &error {
                    // An apiserver that has just started may forbid what it allows a moment later.
                    LinkError::Forbidden(why) if forbidden.is_some_and(|at: Instant| at.elapsed() < ONE_TROUBLE) => {
                        return Err(Failure::message(Code::Permission, why.clone()));
                    }
                    LinkError::Forbidden(_) => Some(begun),
                    _ => None,
                };
                let why = error.to_string();
                notice(&lines, format!("lost {}: {}; reconnecting", connected.address, text::sentence(&why))).await;
            }
            Err(ConnectError::Credentials(why)) => return Err(Failure::message(Code::Config, why)),
            Err(silent @ ConnectError::Unreachable(_)) => {
                let why = silent.to_string();
                if why != last {
                    notice(&lines, format!("{}; retrying every {PAUSE:?}", text::sentence(&why))).await;
                    last = why;
                }
            }
        }
        sleep(PAUSE).await;
    }
}

async fn connected(endpoints: &Endpoints) -> Result<Connected, ConnectError> {
    // Query the daemon before each connected: it learns new addresses, and it may have started or ended.
    let hints = endpoints.hints().await;
    let settings = endpoints.settings.clone().unwrap_or_default();
    one_shot::connect(&settings, &hints).await
}

fn reached(connected: &Connected) -> String {
    let mut text = format!("watching {} ({}) as {}", connected.address, connected.address_source, connected.identity);
    if connected.is_balanced {
        text.push_str("; nodelb balances this address, so the connection may break when the service changes");
    }
    let silent = connected.failed.iter();
    text.extend(silent.map(|(address, why)| format!("; {address} does not respond: {}", text::sentence(why))));
    text
}

async fn notice(lines: &mpsc::Sender<Line>, text: String) {
    follow::send(lines, Line::notice(now(), text)).await;
}
