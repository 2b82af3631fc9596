//! The daemon's side of the reaper: starting it while there are capabilities, and talking to it afterwards.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::wire::{self, BATCH, HELLO, Hello, OUTCOME, Order, Outcome};

/// How long an order of [`BATCH`] entries may take: it is a matter of milliseconds on a node that works.
const PATIENCE: Duration = Duration::from_secs(20);

/// A reaper that was started. Ends when this is dropped.
#[derive(Debug)]
pub struct Reaper {
    child: Child,
    line: UnixStream,
}

impl Reaper {
    /// Starts it with what capabilities this process has: before they are dropped, and before there are threads.
    /// Addresses that were dialled are looked for among the sockets of this cgroup; `None`: among all.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn start(cgroup: Option<&Path>) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("nodelb").arg("reaper").env_clear();
        if let Some(cgroup) = cgroup {
            command.arg("--cgroup").arg(cgroup);
        }
        // In a process group of its own: what a terminal sends is for the daemon, which ends it.
        command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        Ok(Self { child: command.spawn()?, line })
    }

    /// The line to it, for the runtime; with what it says first.
    ///
    /// # Errors
    /// When it says nothing in time.
    pub async fn greet(self) -> io::Result<(Line, Hello)> {
        let Self { child, line } = self;
        let mut line = Line::over(line)?;
        line.child = Some(child);
        let mut bytes = [0; HELLO];
        timeout(PATIENCE, line.stream.read_exact(&mut bytes)).await.map_err(io::Error::from)??;
        Ok((line, Hello::decode(bytes)))
    }
}

/// The line to a reaper that works. After an error it is of no more use.
#[derive(Debug)]
pub struct Line {
    child: Option<Child>,
    stream: tokio::net::UnixStream,
}

impl Line {
    /// To whoever is at the other end.
    pub(crate) fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { child: None, stream: tokio::net::UnixStream::from_std(stream)? })
    }

    /// Waits until the reaper ends. It says nothing unasked: whatever comes is its end.
    pub async fn ended(&self) -> io::Error {
        loop {
            let read = match self.stream.readable().await {
                Ok(()) => self.stream.try_read(&mut [0]),
                Err(error) => Err(error),
            };
            match read {
                Ok(_) => return io::ErrorKind::UnexpectedEof.into(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return error,
            }
        }
    }

    /// Has the order carried out; one outcome for each of its entries, at most [`BATCH`] of them.
    ///
    /// # Errors
    /// When the reaper has ended, or does not answer in time.
    pub async fn order(&mut self, order: &Order) -> io::Result<Vec<Outcome>> {
        let entries = match order {
            Order::Sockets(targets) => targets.len(),
            Order::Dialled(addresses) => addresses.len(),
        };
        let mut answer = vec![0; entries.min(BATCH) * OUTCOME];
        let exchange = async {
            self.stream.write_all(&order.encode()).await?;
            self.stream.read_exact(&mut answer).await
        };
        timeout(PATIENCE, exchange).await.map_err(io::Error::from)??;
        Ok(wire::decode_outcomes(&answer))
    }
}

impl Drop for Line {
    /// A reaper that was given up may be stuck; waiting for it is not.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}
