//! The daemon's side of the reaper: starts it while the daemon has capabilities, or connects to the one that systemd
//! starts; tests it, and sends it orders.

use std::fs;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::stale::Socket;
use nodelb_host::sock_diag;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::time::timeout;

use super::wire::{self, HELLO, Hello, OUTCOME, Order, Outcome};

/// How long an order of [`wire::BATCH`] entries may take. A node that works needs milliseconds.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub enum Reaper {
    /// This process has started the only reaper; `None` after it was used. It ends when this is dropped.
    Started(Option<(Child, UnixStream)>),
    /// Another process starts a reaper for each connection to this socket.
    Behind(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The started reaper has ended, and no other one can be started.
    #[error("the reaper has ended or does not respond ({0}), and nodelb lacks the capabilities to start another one")]
    Started(io::Error),
    /// No reaper answers; a later one may.
    #[error("no reaper responds at {} ({error}; see `systemctl status nodelb-reaper.socket`)", .path.display())]
    Behind { path: PathBuf, error: io::Error },
    /// The reaper runs but cannot end sockets; another one of this process could not either.
    #[error(
        "sockets cannot be closed here ({error}; requires CAP_NET_ADMIN and a kernel with CONFIG_INET_DIAG_DESTROY)"
    )]
    Powerless {
        error: io::Error,
        /// Whether another process starts the next reaper, which may then have the capability.
        is_behind: bool,
    },
}

impl Lost {
    /// Whether another connect cannot succeed.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Started(_) | Self::Powerless { is_behind: false, .. })
    }

    /// Whether the next reaper will probably fail too, unless an administrator changes something.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Powerless { .. })
    }
}

impl Reaper {
    /// Starts a reaper with the capabilities of this process: before they are dropped, and before there are threads.
    pub fn start() -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("nodelb").arg("reaper").env_clear();
        // In its own process group: signals from a terminal are for the daemon, which ends the reaper.
        command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        Ok(Self::Started(Some((command.spawn()?, line))))
    }

    /// Connects to a reaper that works; returns the connection and its first message. Sockets that are connected to
    /// service addresses are searched for in this cgroup; with `None`, everywhere.
    pub async fn call(&mut self, cgroup: Option<&Path>) -> Result<(ReaperLine, Hello), Lost> {
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

    /// Connects to a reaper that has not been tested.
    pub async fn open(&mut self) -> io::Result<ReaperLine> {
        let mut line = self.connect().await?;
        line.greet().await?;
        Ok(line)
    }

    pub fn lost(&self, error: io::Error) -> Lost {
        match self {
            Self::Started(_) => Lost::Started(error),
            Self::Behind(path) => Lost::Behind { path: path.clone(), error },
        }
    }

    async fn connect(&mut self) -> io::Result<ReaperLine> {
        match self {
            Self::Started(started) => {
                let (child, line) = started.take().ok_or(io::ErrorKind::NotConnected)?;
                let mut line = ReaperLine::over(line)?;
                line.child = Some(child);
                Ok(line)
            }
            Self::Behind(path) => {
                let stream = timeout(TIMEOUT, tokio::net::UnixStream::connect(path)).await??;
                Ok(ReaperLine { child: None, stream })
            }
        }
    }
}

/// The connection to a reaper that works. It cannot be used after an error.
#[derive(Debug)]
pub struct ReaperLine {
    child: Option<Child>,
    stream: tokio::net::UnixStream,
}

impl ReaperLine {
    pub(crate) fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { child: None, stream: tokio::net::UnixStream::from_std(stream)? })
    }

    async fn greet(&mut self) -> io::Result<Hello> {
        let mut bytes = [0; HELLO];
        timeout(TIMEOUT, self.stream.read_exact(&mut bytes)).await??;
        Hello::decode(bytes)
    }

    /// Makes the reaper end a socket of this process: the only way to find out whether the kernel supports and permits
    /// it.
    async fn try_out(&mut self) -> io::Result<Outcome> {
        let socket = sock_diag::connected_to_itself()?;
        let address = socket.local_addr()?;
        let cookie = SockRef::from(&socket).cookie()?;
        let netns = fs::metadata("/proc/self/ns/net")?.ino().try_into().map_err(io::Error::other)?;
        let source = L4Addr::new(Addr::from(address.ip()), address.port(), Protocol::Udp);
        let target = Socket { netns, cookie, family: source.addr.family(), ifindex: 0, source };
        let outcomes = self.order(&Order::Sockets(vec![(target, source)])).await?;
        outcomes.first().copied().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Sends the list of this process's own sockets, which must never be ended for their destination address.
    pub async fn spare_own(&mut self) -> io::Result<()> {
        let inode = |entry: fs::DirEntry| {
            let target = fs::read_link(entry.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        let own = fs::read_dir("/proc/self/fd")?.filter_map(|entry| inode(entry.ok()?)).collect();
        self.order(&Order::Spare(own)).await.map(drop)
    }

    /// Waits until the reaper ends. It sends nothing without an order, so any event is its end.
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

    /// Sends an order, and waits for one outcome for each of its entries, of which there are at most [`wire::BATCH`].
    pub async fn order(&mut self, order: &Order) -> io::Result<Vec<Outcome>> {
        self.order_with(order, None).await
    }

    pub async fn order_with(&mut self, order: &Order, descriptor: Option<BorrowedFd<'_>>) -> io::Result<Vec<Outcome>> {
        let mut answer = vec![0; order.outcomes() * OUTCOME];
        let exchange = async {
            let frame = order.encode();
            let sent = match descriptor {
                Some(descriptor) => self.send_with(&frame, descriptor).await?,
                None => 0,
            };
            self.stream.write_all(&frame[sent..]).await?;
            self.stream.read_exact(&mut answer).await
        };
        timeout(TIMEOUT, exchange).await??;
        Ok(wire::decode_outcomes(&answer))
    }

    /// Sends the beginning of a frame with a descriptor; returns how many bytes.
    async fn send_with(&self, frame: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
        let descriptors = [descriptor];
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            Ok(sendmsg(&self.stream, &[IoSlice::new(frame)], &mut ancillary, SendFlags::NOSIGNAL)?)
        };
        self.stream.async_io(Interest::WRITABLE, send).await
    }
}

impl Drop for ReaperLine {
    /// Kills the reaper: an abandoned one may hang, but waiting for it after the kill does not.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Fails if the reaper has already ended.
            drop(child.kill());
            drop(child.wait());
        }
    }
}
