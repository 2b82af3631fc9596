//! The TCP stream below TLS, which a replica can freeze, slow down or reset.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// The state that all connections of a replica share.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    frozen: bool,
    black_hole: bool,
    /// Connections with numbers up to this one are reset.
    reset_up_to: u64,
    /// Resets a connection when it has written this many bytes since the rule was set.
    reset_after: Option<ResetAfter>,
    /// Maximum number of bytes per write, and the pause after each write.
    slow: Option<(usize, Duration)>,
    connections: u64,
    wakers: HashMap<u64, Waker>,
}

#[derive(Clone, Copy, Debug)]
struct ResetAfter {
    rule: u64,
    bytes: u64,
    times: u32,
}

impl Gate {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, wakers) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (change(&mut state), std::mem::take(&mut state.wakers))
        };
        wakers.into_values().for_each(Waker::wake);
        result
    }

    /// Stops reading and writing on all connections.
    pub(crate) fn freeze(&self, on: bool) {
        self.change(|state| state.frozen = on);
    }

    /// Stops reading and writing on connections that are accepted while it is on.
    pub(crate) fn black_hole(&self, on: bool) {
        self.change(|state| state.black_hole = on);
    }

    /// Resets every connection.
    pub(crate) fn reset_all(&self) {
        self.change(|state| state.reset_up_to = state.connections);
    }

    pub(crate) fn reset_after(&self, bytes: u64, times: u32) {
        self.change(|state| {
            let rule = state.reset_after.map_or(1, |before| before.rule + 1);
            state.reset_after = Some(ResetAfter { rule, bytes, times });
        });
    }

    pub(crate) fn slow(&self, slow: Option<(usize, Duration)>) {
        self.change(|state| state.slow = slow);
    }

    /// Removes all faults.
    pub(crate) fn clear(&self) {
        self.change(|state| {
            state.frozen = false;
            state.black_hole = false;
            state.slow = None;
            if let Some(rule) = &mut state.reset_after {
                rule.times = 0;
            }
        });
    }

    /// Wraps an accepted connection.
    pub(crate) fn admit(self: &Arc<Self>, stream: TcpStream) -> Wire {
        let (number, black_holed) = self.change(|state| {
            state.connections += 1;
            (state.connections, state.black_hole)
        });
        Wire { stream, gate: self.clone(), number, black_holed, rule: 0, written: 0, pause: None }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    gate: Arc<Gate>,
    number: u64,
    /// Accepted while the replica was a black hole.
    black_holed: bool,
    /// The reset rule that `written` counts for.
    rule: u64,
    written: u64,
    pause: Option<Pin<Box<Sleep>>>,
}

/// How many bytes may be written now.
struct Allowance {
    bytes: usize,
    pause: Option<Duration>,
}

impl Wire {
    /// Waits while the connection is frozen; returns an error if it has to be reset.
    fn pass(&mut self, context: &Context<'_>) -> Poll<io::Result<Allowance>> {
        let gate = self.gate.clone();
        let mut state = gate.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.wakers.insert(self.number, context.waker().clone());
        if self.number <= state.reset_up_to {
            return Poll::Ready(Err(self.reset()));
        }
        if state.frozen || (self.black_holed && state.black_hole) {
            return Poll::Pending;
        }
        let mut allowance = Allowance { bytes: usize::MAX, pause: None };
        if let Some(rule) = state.reset_after.as_mut().filter(|rule| rule.times > 0) {
            if self.rule != rule.rule {
                (self.rule, self.written) = (rule.rule, 0);
            }
            let left = rule.bytes.saturating_sub(self.written);
            if left == 0 {
                rule.times -= 1;
                return Poll::Ready(Err(self.reset()));
            }
            allowance.bytes = usize::try_from(left).unwrap_or(usize::MAX);
        }
        if let Some((bytes, pause)) = state.slow {
            allowance = Allowance { bytes: allowance.bytes.min(bytes.max(1)), pause: Some(pause) };
        }
        Poll::Ready(Ok(allowance))
    }

    /// Makes close() send a reset.
    fn reset(&self) -> io::Error {
        self.stream.set_zero_linger().err().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
    }

    fn rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.gate.state.lock().unwrap_or_else(PoisonError::into_inner).wakers.remove(&self.number);
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.pass(context))?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.rest(context));
        let allowance = ready!(self.pass(context))?;
        let bytes = &bytes[..bytes.len().min(allowance.bytes)];
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.written += written as u64;
        self.pause = allowance.pause.map(|pause| Box::pin(tokio::time::sleep(pause)));
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.pass(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
