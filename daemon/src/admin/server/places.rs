//! Places: how many connections may be in one state at a time, and who has to go when there are more. Whoever has been
//! there longest makes room, once it has had its share of time; before that, newcomers wait. So nobody who dawdles keeps
//! others out, and nobody who does not is sent away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// A newcomer looks again after this time at the latest, whoever may have forgotten to tell it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A number of places.
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
    /// Whether it may be told to leave.
    may_stay: bool,
}

/// A place that is taken; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// So many, each of which is its holder's for at least this time.
    pub(super) fn new(most: usize, share: Duration) -> Arc<Self> {
        Arc::new(Self { most, share, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Takes a place, as soon as there is one. `leave` is notified when the place is given to somebody else: whoever holds
    /// it has to end then.
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

    /// The number of the place, or when to try again.
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
        // What is behind the lock is whole at any moment.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// From now on the place is not given to anybody else.
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
