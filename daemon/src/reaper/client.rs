//! The daemon's side of the reaper: starting it while there are capabilities, or calling the one that systemd starts; trying
//! it out, and talking to it afterwards.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::stale::Socket;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::wire::{self, HELLO, Hello, OUTCOME, Order, Outcome};

/// How long an order of [`wire::BATCH`] entries may take: it is a matter of milliseconds on a node that works.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where reapers come from.
#[derive(Debug)]
pub enum Reaper {
    /// This process has started the only one there will be; nothing when it was called. Ends when this is dropped.
    Started(Option<(Child, UnixStream)>),
    /// Somebody starts one for whoever connects to this socket.
    Behind(PathBuf),
}

/// Why there is no reaper.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The one that was started could be the last.
    #[error("the reaper has ended, or does not answer ({0}), and nodelb has no capabilities to start another one with")]
    Started(io::Error),
    /// The next one may do better.
    #[error("no reaper answers at {} ({error}; see `systemctl status nodelb-reaper.socket`)", .path.display())]
    Behind {
        /// Where it was called.
        path: PathBuf,
        /// What happened.
        error: io::Error,
    },
    /// There is one, and it can end nothing: no other one of this process could.
    #[error(
        "sockets cannot be ended here ({error}; it takes CAP_NET_ADMIN and a kernel with CONFIG_INET_DIAG_DESTROY)"
    )]
    Powerless {
        /// What it met.
        error: io::Error,
        /// Whether somebody else starts the next one, by then with a capability perhaps.
        is_behind: bool,
    },
}

impl Lost {
    /// Whether it is of use to call again.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Started(_) | Self::Powerless { is_behind: false, .. })
    }

    /// Whether the next one will hardly do better, unless somebody has changed something.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Powerless { .. })
    }
}

impl Reaper {
    /// Starts one with what capabilities this process has: before they are dropped, and before there are threads.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn start() -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("nodelb").arg("reaper").env_clear();
        // In a process group of its own: what a terminal sends is for the daemon, which ends it.
        command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        Ok(Self::Started(Some((command.spawn()?, line))))
    }

    /// The line to one that works, and what it says first. Addresses that were dialled are looked for among the sockets of
    /// this cgroup; `None`: among all.
    ///
    /// # Errors
    /// When there is none, it does not answer in time, or it can end nothing.
    pub async fn call(&mut self, cgroup: Option<&Path>) -> Result<(Line, Hello), Lost> {
        let called = async {
            let mut line = self.connect().await?;
            let hello = line.greet().await?;
            if let Some(cgroup) = cgroup {
                line.order(&Order::Within(cgroup.to_owned())).await?;
            }
            let outcome = line.try_out().await?;
            Ok((line, hello, outcome))
        };
        match called.await {
            Err(error) => Err(self.lost(error)),
            Ok((_, _, outcome)) if outcome.destroyed == 0 => {
                let error = io::Error::from_raw_os_error(outcome.errno);
                Err(Lost::Powerless { error, is_behind: matches!(self, Self::Behind(_)) })
            }
            Ok((line, hello, _)) => Ok((line, hello)),
        }
    }

    /// What follows from this error.
    pub fn lost(&self, error: io::Error) -> Lost {
        match self {
            Self::Started(_) => Lost::Started(error),
            Self::Behind(path) => Lost::Behind { path: path.clone(), error },
        }
    }

    async fn connect(&mut self) -> io::Result<Line> {
        match self {
            Self::Started(started) => {
                let (child, line) = started.take().ok_or(io::ErrorKind::NotConnected)?;
                let mut line = Line::over(line)?;
                line.child = Some(child);
                Ok(line)
            }
            Self::Behind(path) => {
                let stream = timeout(PATIENCE, tokio::net::UnixStream::connect(path)).await??;
                Ok(Line { child: None, stream })
            }
        }
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

    async fn greet(&mut self) -> io::Result<Hello> {
        let mut bytes = [0; HELLO];
        timeout(PATIENCE, self.stream.read_exact(&mut bytes)).await??;
        Hello::decode(bytes)
    }

    /// Has it end a socket of this process: the only way to learn whether the kernel does so, and lets it.
    async fn try_out(&mut self) -> io::Result<Outcome> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let address = socket.local_addr()?;
        // To itself: nobody else has a socket with this address at both ends.
        socket.connect(address)?;
        let cookie = SockRef::from(&socket).cookie()?;
        let netns = fs::metadata("/proc/self/ns/net")?.ino().try_into().map_err(io::Error::other)?;
        let source = L4Addr::new(Addr::from(address.ip()), address.port(), Protocol::Udp);
        let target = Socket { netns, cookie, family: Family::Ipv4, ifindex: 0, source };
        let outcomes = self.order(&Order::Sockets(vec![(target, source)])).await?;
        outcomes.first().copied().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Tells which sockets are this process's own, of which none counts as dialled.
    ///
    /// # Errors
    /// As [`Self::order`]; or when they cannot be told.
    pub async fn spare_own(&mut self) -> io::Result<()> {
        let inode = |entry: fs::DirEntry| {
            let target = fs::read_link(entry.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        let own = fs::read_dir("/proc/self/fd")?.filter_map(|entry| inode(entry.ok()?)).collect();
        self.order(&Order::Spare(own)).await.map(drop)
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

    /// Has the order carried out; one outcome for each of its entries, at most [`wire::BATCH`] of them.
    ///
    /// # Errors
    /// When the reaper has ended, or does not answer in time.
    pub async fn order(&mut self, order: &Order) -> io::Result<Vec<Outcome>> {
        let mut answer = vec![0; order.outcomes() * OUTCOME];
        let exchange = async {
            self.stream.write_all(&order.encode()).await?;
            self.stream.read_exact(&mut answer).await
        };
        timeout(PATIENCE, exchange).await??;
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
