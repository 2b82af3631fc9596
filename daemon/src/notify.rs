//! Reports the state of the daemon to the service manager, by the sd_notify(3) protocol. Owns the notification socket;
//! the reconcile loop decides when to send which message. The environment is a parameter, so that tests can act as the
//! service manager.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sd_notify::NotifyState;

/// The connection to the service manager. Without one (a daemon started by hand) every message is dropped.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
    state: Mutex<State>,
}

/// What the service manager knows. The start and reloads overlap, and `READY=1` ends whatever it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Starting,
    Running,
    Reloading,
}

/// The service manager's environment variables.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    pub socket: Option<OsString>,
    /// `WATCHDOG_USEC`: the manager restarts the daemon after these microseconds of silence.
    pub watchdog_usec: Option<String>,
    /// `WATCHDOG_PID`: the id of the process that the watchdog supervises, if it is limited to one.
    pub watchdog_pid: Option<String>,
}

impl Environment {
    pub fn of_process() -> Self {
        Self {
            socket: std::env::var_os("NOTIFY_SOCKET"),
            watchdog_usec: std::env::var("WATCHDOG_USEC").ok(),
            watchdog_pid: std::env::var("WATCHDOG_PID").ok(),
        }
    }

    fn watchdog(&self) -> Option<Duration> {
        let for_us = self.watchdog_pid.as_ref().is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let usec: u64 = self.watchdog_usec.as_ref()?.parse().ok()?;
        (for_us && usec > 0).then(|| Duration::from_micros(usec))
    }
}

impl Notifier {
    /// Connects to the service manager that the environment names.
    ///
    /// # Errors
    /// If a socket is named but cannot be reached. The daemon can work without it: log the error once and use
    /// [`Notifier::default`].
    pub fn connect(environment: &Environment) -> io::Result<Self> {
        let socket = environment.socket.as_deref().filter(|name| !name.is_empty()).map(connect).transpose()?;
        let watchdog = environment.watchdog().filter(|_| socket.is_some());
        Ok(Self { socket, watchdog, state: Mutex::default() })
    }

    /// How often [`Notifier::watchdog`] must be called: half of the manager's limit. `None` without a watchdog.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|allowed| allowed / 2)
    }

    /// Reports that the start is finished. The end of a reload that has begun since is not reported.
    pub fn started(&self, status: &str) {
        self.end(State::Starting, status);
    }

    /// Reports that the configuration is being read again; [`Notifier::reloaded`] ends that state. Before the end of the
    /// start, only the status is reported, because the service manager does not wait for a reload then.
    pub fn reloading(&self, status: &str) {
        let mut state = self.state();
        let status = one_line(status);
        if *state == State::Starting {
            return self.send(&[NotifyState::Status(&status)]);
        }
        // Type=notify-reload requires the time: without it systemd 253 and newer waits forever.
        let Ok(time) = NotifyState::monotonic_usec_now() else { return };
        *state = State::Reloading;
        self.send(&[NotifyState::Reloading, time, NotifyState::Status(&status)]);
    }

    /// Reports that a reload is finished.
    pub fn reloaded(&self, status: &str) {
        self.end(State::Reloading, status);
    }

    /// Reports the status, and that the daemon is ready if the service manager waits for the end of this.
    fn end(&self, ended: State, status: &str) {
        let mut state = self.state();
        let status = one_line(status);
        if *state == ended {
            *state = State::Running;
            self.send(&[NotifyState::Ready, NotifyState::Status(&status)]);
        } else {
            self.send(&[NotifyState::Status(&status)]);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stopping(&self, status: &str) {
        self.send(&[NotifyState::Stopping, NotifyState::Status(&one_line(status))]);
    }

    /// Reports that the reconcile loop is running.
    pub fn watchdog(&self) {
        if self.watchdog.is_some() {
            self.send(&[NotifyState::Watchdog]);
        }
    }

    /// Sends a message. A manager that does not read must not delay the daemon: messages that do not fit are dropped.
    fn send(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::debug!("the service manager did not accept {:?}: {error}", message.trim_end());
        }
    }
}

/// The status as one line: a line break would end the value and begin another assignment.
fn one_line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
#[path = "tests/notify.rs"]
mod tests;
