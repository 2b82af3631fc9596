//! Who drains a backend: what the kernel knows of the process at the other end of the Unix socket, not what it claims.

use std::fs;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nix::unistd::{Uid, User};
use nodelb_core::text::limited;
use nodelb_host::threads::Threads;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// `None` if the process is in another PID namespace, which is not visible from here.
    pub pid: Option<i32>,
}

/// The login user of a process that no user has started.
const NO_LOGIN: u32 = u32::MAX;

/// Names may come from a directory service that does not respond.
const NAMES_TIME: Duration = Duration::from_secs(1);

const MAX_NAME: usize = 64;

/// Formats as `root (login alice)`, or as `root` if the process does not belong to the session of another user.
pub async fn author(peer: Peer) -> Arc<str> {
    static NAMES: LazyLock<Threads> = LazyLock::new(|| Threads::new("names", 4));
    let text = NAMES.run_within(NAMES_TIME, move || Ok(text(peer.uid, login(peer), name))).await;
    text.unwrap_or_else(|_unknown| text_of_uid(peer.uid)).into()
}

/// The user who logged in, with this or with another user id since; `None` if there is none. The process waits for the
/// answer, so that its number belongs to no other process.
fn login(peer: Peer) -> Option<u32> {
    // A kernel without audit support does not have the file.
    let login = fs::read_to_string(format!("/proc/{}/loginuid", peer.pid?)).ok()?;
    login.trim().parse().ok().filter(|login| *login != NO_LOGIN)
}

fn text(uid: u32, login: Option<u32>, name: impl Fn(u32) -> String) -> String {
    match login.filter(|login| *login != uid) {
        Some(login) => format!("{} (login {})", name(uid), name(login)),
        None => name(uid),
    }
}

fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let name = user.filter(|user| !user.name.is_empty()).map(|user| limited(&user.name, MAX_NAME).into_owned());
    name.unwrap_or_else(|| text_of_uid(uid))
}

fn text_of_uid(uid: u32) -> String {
    if uid == 0 { "root".into() } else { format!("user {uid}") }
}

#[cfg(test)]
#[path = "tests/author.rs"]
mod tests;
