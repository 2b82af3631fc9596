//! Places: the maximum number of connections in one state, and the choice of the connection that ends when there are
//! more. The connection that has been there longest makes room after its share of time; until then, new ones wait. A
//! slow client therefore never keeps others out, and a fast one is never cut off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Maximum time after which a waiting connection looks again, in case it missed a notification.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A limited number of places.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    share: Duration,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    /// By number, so the first has been there longest.
    places: BTreeMap<u64, Holder>,
    next: u64,
}

#[derive(Debug)]
struct Holder {
    since: Instant,
    leave: Arc<Notify>,
    /// Whether the holder may be asked to leave.
    may_stay: bool,
}

/// A place in use. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// Creates this number of places. A holder keeps its place for at least `share`.
    pub(super) fn new(most: usize, share: Duration) -> Arc<Self> {
        Arc::new(Self { most, share, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Takes a place as soon as one is free. `leave` is notified when the place is given to another connection; its
    /// holder has to end then.
    pub(super) async fn take(self: &Arc<Self>, leave: &Arc<Notify>) -> Place {
        loop {
            let (number, wait_until) = self.try_take(leave);
            if let Some(number) = number {
                return Place { places: Arc::clone(self), number };
            }
            tokio::select! {
                () = self.freed.notified() => {}
                () = sleep_until(wait_until) => {}
            }
        }
    }

    /// Returns the number of a place, or the time of the next attempt.
    fn try_take(&self, leave: &Arc<Notify>) -> (Option<u64>, Instant) {
        let now = Instant::now();
        let mut wait_until = now + LOOK_AGAIN;
        let mut taken = self.lock();
        if taken.places.len() >= self.most {
            let oldest = taken.places.iter().find(|(_, holder)| !holder.may_stay);
            let Some((&number, holder)) = oldest else { return (None, wait_until) };
            wait_until = wait_until.min(holder.since + self.share);
            if wait_until > now {
                return (None, wait_until);
            }
            holder.leave.notify_one();
            taken.places.remove(&number);
        }
        let number = taken.next;
        taken.next += 1;
        taken.places.insert(number, Holder { since: now, leave: Arc::clone(leave), may_stay: false });
        (Some(number), wait_until)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // The data behind the lock is consistent at any moment, so a poisoned lock can still be used.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// From now on, the place is not given to another connection.
    pub(super) fn stay(&self) {
        if let Some(holder) = self.places.lock().places.get_mut(&self.number) {
            holder.may_stay = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().places.remove(&self.number);
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
#[path = "tests/places.rs"]
mod tests;
