//! The control socket of the binary. Protocol: one JSON command per line, answered by one line,
//! either `ok` or an error message.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use nodelb_apiserver::{Cluster, EventFault, Fault, On, Replica, ServeOptions};
use serde::Deserialize;

/// A command. Replicas are numbered from 0 in the order of `--listen`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Command {
    /// Starts a stopped replica at its previous address.
    Start(usize),
    /// Closes the listener and every connection.
    Stop(usize),
    /// Stops reading and writing, as SIGSTOP would.
    Freeze(usize),
    /// Accepts new connections and never responds on them.
    BlackHole(usize),
    /// Refuses new connections.
    Refuse(usize),
    /// Resets every connection.
    Reset(usize),
    /// `/readyz` returns 503.
    NotReady(usize),
    /// Ends every watch.
    EndWatches(usize),
    /// Ends every watch with 410.
    ExpireWatches(usize),
    /// Sends GOAWAY over every connection.
    GoAway(usize),
    /// Answers every request with this status for a while, as an apiserver that is starting does.
    StartUp { replica: usize, millis: u64, code: u16 },
    /// Writes at most this many bytes at a time, with a pause after each write.
    Slow { replica: usize, bytes: usize, pause_ms: u64 },
    /// Injects a fault into requests.
    Answer {
        replica: usize,
        #[serde(default)]
        on: On,
        fault: Fault,
        times: Option<u32>,
    },
    /// Injects a fault into watch events.
    Events { replica: usize, resource: String, fault: EventFault, times: Option<u32> },
    /// Removes all faults.
    Clear(usize),
    /// Compacts the history.
    Compact,
}

/// The replicas of the binary, running or stopped.
pub(crate) struct Control {
    cluster: Cluster,
    replicas: Vec<(SocketAddr, Option<Replica>)>,
}

impl Control {
    /// Takes ownership of running replicas.
    pub(crate) fn new(cluster: Cluster, replicas: Vec<Replica>) -> Self {
        Self { cluster, replicas: replicas.into_iter().map(|it| (it.address(), Some(it))).collect() }
    }

    /// Executes the commands of clients, one client at a time, until the process ends.
    pub(crate) fn serve(mut self, listener: &UnixListener) {
        for stream in listener.incoming().flatten() {
            // The client has disconnected.
            let _ = self.serve_client(&stream);
        }
    }

    fn serve_client(&mut self, mut stream: &UnixStream) -> anyhow::Result<()> {
        for line in BufReader::new(stream).lines() {
            match self.execute(&line?) {
                Ok(()) => writeln!(stream, "ok")?,
                Err(error) => writeln!(stream, "error: {error:#}")?,
            }
        }
        Ok(())
    }

    fn execute(&mut self, line: &str) -> anyhow::Result<()> {
        match serde_json::from_str(line).with_context(|| format!("not a command: {line}"))? {
            Command::Start(number) => self.start(number)?,
            Command::Stop(number) => drop(self.slot(number)?.1.take()),
            Command::Freeze(number) => self.running(number)?.faults().freeze(true),
            Command::BlackHole(number) => self.running(number)?.faults().black_hole(true),
            Command::Refuse(number) => self.running(number)?.faults().refuse(true),
            Command::Reset(number) => self.running(number)?.faults().reset_connections(),
            Command::NotReady(number) => self.running(number)?.faults().not_ready(),
            Command::EndWatches(number) => self.running(number)?.faults().end_watches(),
            Command::ExpireWatches(number) => self.running(number)?.faults().expire_watches(),
            Command::GoAway(number) => self.running(number)?.faults().go_away(),
            Command::StartUp { replica, millis, code } => {
                self.running(replica)?.faults().start_up(Duration::from_millis(millis), code);
            }
            Command::Slow { replica, bytes, pause_ms } => {
                self.running(replica)?.faults().slow(bytes, Duration::from_millis(pause_ms));
            }
            Command::Answer { replica, on, fault, times } => {
                let faults = self.running(replica)?.faults();
                match times {
                    Some(times) => faults.answer_next(times, on, fault),
                    None => faults.answer(on, fault),
                }
            }
            Command::Events { replica, resource, fault, times } => {
                let faults = self.running(replica)?.faults();
                match times {
                    Some(times) => faults.events_next(times, &resource, fault),
                    None => faults.events(&resource, fault),
                }
            }
            Command::Clear(number) => self.running(number)?.faults().clear(),
            Command::Compact => self.cluster.compact(),
        }
        Ok(())
    }

    fn slot(&mut self, number: usize) -> anyhow::Result<&mut (SocketAddr, Option<Replica>)> {
        let count = self.replicas.len();
        self.replicas.get_mut(number).with_context(|| format!("there is no replica {number}, only 0 to {}", count - 1))
    }

    fn running(&mut self, number: usize) -> anyhow::Result<&Replica> {
        self.slot(number)?.1.as_ref().with_context(|| format!("replica {number} is stopped: start it first"))
    }

    fn start(&mut self, number: usize) -> anyhow::Result<()> {
        let cluster = self.cluster.clone();
        let (address, replica) = self.slot(number)?;
        if replica.is_some() {
            bail!("replica {number} runs already");
        }
        let listener = TcpListener::bind(*address).with_context(|| format!("cannot listen on {address}"))?;
        *replica = Some(cluster.serve(listener, ServeOptions::default())?);
        Ok(())
    }
}

/// Sends commands to the control socket of a server.
pub(crate) fn send(path: &Path, commands: &[String]) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
    let mut answers = BufReader::new(stream.try_clone()?).lines();
    for command in commands {
        writeln!(stream, "{command}")?;
        match answers.next().transpose()?.as_deref() {
            Some("ok") => {}
            Some(answer) => bail!("{command}: {answer}"),
            None => bail!("{command}: the server closed the connection"),
        }
    }
    Ok(())
}
