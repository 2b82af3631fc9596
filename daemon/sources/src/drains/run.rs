//! The task that keeps the drains: carries out requests, and ends those that are over.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::drain::{self, Drain, DrainCause, Drained};
use nodelb_core::model::service::ServiceName;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{MapState, ServiceEntry};
use nodelb_core::state::owner::hash_of;
use nodelb_core::text::listed;
use nodelb_host::clock::{ticking, unix_millis, unix_now, unix_of_boot, until, was_set};
use nodelb_host::state_file::{Reading, START, StateFile};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::journal;
use super::request::{
    Action, MAX_LENGTH, Refusal, Request, Wish, others, to_drain, to_undrain, why_kept, with_drains, without_drain,
};
use super::state_file::{self, All, Stored, follow_clock};
use crate::OwnerHandle;

const QUEUE: usize = 16;

/// The interval at which the task looks for drains that are over. The wall clock may be set at any time.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// How long a drain that was over at the start waits for the source of its service.
const SYNC_TIME: Duration = Duration::from_secs(10);

const APPLY_TIME: Duration = Duration::from_secs(4);

/// Sends the drains of the previous run to the owner task, then starts the task, which runs until `shutdown` is ready. While
/// the drains in the state directory are being read for too long, the owner task keeps what the maps have.
pub async fn start(
    (reading, directory): (Reading<Stored>, &Path),
    owner: &OwnerHandle,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> mpsc::Sender<Request> {
    start_with(reading, state_file::start(directory), owner, shutdown).await
}

async fn start_with(
    mut reading: Reading<Stored>,
    file: StateFile<Arc<All>>,
    owner: &OwnerHandle,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> mpsc::Sender<Request> {
    let (to, requests) = mpsc::channel(QUEUE);
    let maps = owner.snapshot.borrow().realised.clone();
    let mut drainer = Drainer {
        all: All::new(),
        owner: owner.clone(),
        file,
        unread: None,
        maps,
        set: unix_of_boot(),
        started: Instant::now(),
    };
    match reading.within(START).await {
        Some(stored) => drainer.take(stored).await,
        None => {
            drainer.unread = Some(reading);
            owner.send(vec![Change::DrainsUnread(true)]).await;
        }
    }
    tokio::spawn(async move { until(shutdown, drainer.run(requests)).await });
    to
}

/// Removes and returns the drains that had ended before the start, as the maps show: the previous run could not store that.
/// Drains give way where an API server is reached and no other backend is left, so that such a list shows nothing.
fn take_ended(all: &mut All, maps: &MapState, is_apiserver: impl Fn(L4Addr) -> bool) -> Vec<(ServiceName, Drained)> {
    let of = |service: &ServiceName| {
        let hash = hash_of(service);
        maps.services.values().filter(move |entry| entry.tag.is_some_and(|tag| tag.service == hash))
    };
    let slots = |entry: &Arc<ServiceEntry>| -> BTreeSet<L4Addr> {
        entry.cluster.iter().chain(&*entry.local).map(|slot| slot.addr).collect()
    };
    let of_kubernetes: BTreeSet<L4Addr> = of(&ServiceName::new("default", "kubernetes")).flat_map(slots).collect();
    let mut ended = Vec::new();
    for (service, drains) in all.iter_mut() {
        let lists: Vec<BTreeSet<L4Addr>> = of(service).map(slots).collect();
        let gives_way = lists.iter().flatten().any(|at| of_kubernetes.contains(at) || is_apiserver(*at));
        let is_drained = |at: &L4Addr| drain::find(drains, (at.addr, at.port)).is_some();
        let shows = |list: &&BTreeSet<L4Addr>| !gives_way || !list.iter().all(is_drained);
        let used: Vec<&L4Addr> = lists.iter().filter(shows).flatten().collect();
        let is_used = |backend: &Drained| used.iter().any(|at| backend.includes((at.addr, at.port)));
        let over: Vec<Drained> = drains.keys().filter(|backend| is_used(backend)).copied().collect();
        drains.retain(|backend, _| !over.contains(backend));
        ended.extend(over.into_iter().map(|backend| (service.clone(), backend)));
    }
    all.retain(|_, drains| !drains.is_empty());
    ended
}

/// Removes the drains that are over, logs them, and returns the changes for the owner task.
fn end_over(all: &mut All, now: u64, may_end: impl Fn(&ServiceName) -> bool) -> Vec<Change> {
    let mut changes = Vec::new();
    for (service, drains) in all.iter_mut().filter(|(service, _)| may_end(service)) {
        let over: Vec<Drained> =
            drains.iter().filter(|(_, drain)| drain.is_over(now)).map(|(backend, _)| *backend).collect();
        for backend in over {
            let Some(drain) = drains.remove(&backend) else { continue };
            let length = drain.length().unwrap_or_default();
            let others = others(drains, backend, "still ");
            let text = format!("end of the drain of {backend} by {} after {length}{others}", drain.by);
            let cause = DrainCause::Ended(text.into());
            journal::log(service, &cause, !others.is_empty());
            changes.push(Change::Drains(service.clone(), drains.clone(), Some(cause)));
        }
    }
    all.retain(|_, drains| !drains.is_empty());
    changes
}

struct Drainer {
    all: All,
    owner: OwnerHandle,
    file: StateFile<Arc<All>>,
    /// The drains of the previous run, until they have been read.
    unread: Option<Reading<Stored>>,
    /// The maps at the start.
    maps: MapState,
    /// How the wall clock is set.
    set: i64,
    started: Instant,
}

impl Drainer {
    async fn run(&mut self, mut requests: mpsc::Receiver<Request>) {
        let mut tick = ticking(TICK_EVERY);
        loop {
            tokio::select! {
                stored = Reading::late(&mut self.unread) => self.take(stored).await,
                request = requests.recv() => {
                    // The admin API has ended, because the daemon ends.
                    let Some(Request { wish, by, reply }) = request else { return };
                    self.follow_clock().await;
                    let answer = match wish.action {
                        _ if self.unread.is_some() => Err(Refusal::Failed(format!(
                            "{} has not been read since the start: its file system does not answer. Until then, backends \
                             stay drained as the maps have them", self.file.path().display()
                        ))),
                        Action::Drain { length, is_forced } => {
                            let since = unix_millis().div_ceil(1_000);
                            let until = length.map(|length| since.saturating_add(length.as_secs()));
                            self.drain(&wish, (Drain { by, since, until }, is_forced)).await
                        }
                        Action::Undrain => self.undrain(&wish, &by).await,
                    };
                    // The client may have gone.
                    let _ = reply.send(answer);
                }
                _ = tick.tick(), if !self.all.is_empty() => self.tick().await,
            }
        }
    }

    /// Takes over the drains of the previous run. They are in effect as far as the maps at the start agree.
    async fn take(&mut self, (mut all, unusable): Stored) {
        let path = self.file.path();
        unusable.iter().for_each(|(service, problem)| journal::warn_unreadable(path, service, problem));
        let apiservers = self.owner.snapshot.borrow().facts.apiservers().clone();
        let ended = take_ended(&mut all, &std::mem::take(&mut self.maps), |at| apiservers.has(at));
        for (service, backend) in &ended {
            let others = all.get(service).map(|drains| others(drains, *backend, "still ")).unwrap_or_default();
            let text = format!("the drain of {backend} had ended before this start, as the maps show{others}");
            journal::log(service, &DrainCause::Ended(text.into()), !others.is_empty());
        }
        if !ended.is_empty() {
            self.file.save(Arc::new(all.clone()));
        }
        let known = all.iter().map(|(service, drains)| Change::Drains(service.clone(), drains.clone(), None));
        let changes = std::iter::once(Change::DrainsUnread(false)).chain(known).collect();
        self.owner.send(changes).await;
        self.all = all;
    }

    /// Moves the ends of drains after the clock was set.
    async fn follow_clock(&mut self) {
        let set = unix_of_boot();
        if !was_set(self.set, set) {
            return;
        }
        let moved = follow_clock(&mut self.all, self.set, set, unix_now());
        self.set = set;
        let changes =
            moved.into_iter().filter_map(|name| Some(Change::Drains(name.clone(), self.all.get(&name)?.clone(), None)));
        self.owner.send(changes.collect()).await;
        self.file.save(Arc::new(self.all.clone()));
    }

    async fn drain(&mut self, wish: &Wish, (drain, is_forced): (Drain, bool)) -> Result<String, Refusal> {
        let backend = wish.backend;
        if let Action::Drain { length: Some(length), .. } = wish.action
            && (length < Duration::from_secs(1) || length > MAX_LENGTH)
        {
            return Err(Refusal::Invalid(
                "a drain lasts from 1s to 366d, or without --for until `nodelb undrain`".into(),
            ));
        }
        let snapshot = self.owner.snapshot.borrow().clone();
        let services = to_drain(&snapshot, wish)?;
        let all = with_drains(&snapshot, &self.all, (&services, backend), (&drain, is_forced))?;
        if let Err(error) = self.file.store(Arc::new(all.clone())).await {
            // The write may still succeed: then the next one takes this back. After a kill in between, the maps do.
            self.file.save(Arc::new(self.all.clone()));
            let path = self.file.path().display();
            return Err(Refusal::Failed(format!("{backend} is not drained: {path} cannot be written: {error}")));
        }
        self.all = all;
        let length = drain.length().map(|length| format!(" for {length}")).unwrap_or_default();
        let cause = DrainCause::Begun(format!("drain of {backend} by {}{length}", drain.by).into());
        services.iter().for_each(|service| journal::log(service, &cause, false));
        let causes = services.iter().map(|service| (service.clone(), cause.clone())).collect();
        self.apply(causes, |snapshot, service| !is_offered(snapshot, service, backend)).await?;
        let [service] = &services[..] else {
            return Ok(format!("{backend} is {drain}, for {}", listed(&services, usize::MAX)));
        };
        let others = self.all.get(service).map(|drains| others(drains, backend, "")).unwrap_or_default();
        Ok(format!("{backend} of {service} is {drain}{others}"))
    }

    async fn undrain(&mut self, wish: &Wish, by: &str) -> Result<String, Refusal> {
        let (backend, services) = (wish.backend, to_undrain(&self.all, wish)?);
        let mut causes = Vec::new();
        for service in &services {
            let (drains, _) = without_drain(&self.all, (service, backend))?;
            let others = others(&drains, backend, "still ");
            let cause = DrainCause::Ended(format!("undrain of {backend} by {by}{others}").into());
            journal::log(service, &cause, !others.is_empty());
            causes.push((service.clone(), cause));
            match drains.is_empty() {
                true => self.all.remove(service),
                false => self.all.insert(service.clone(), drains),
            };
        }
        // An undrain takes effect even if it cannot be stored.
        let is_stored = self.file.store(Arc::new(self.all.clone())).await.is_ok();
        self.apply(causes, |snapshot, service| has_desired(snapshot, service, backend)).await?;
        let stored = if is_stored { "" } else { "; this cannot be stored yet, see journalctl -u nodelb" };
        let [service] = &services[..] else {
            return Ok(format!("{backend} is no longer drained, for {}{stored}", listed(&services, usize::MAX)));
        };
        let others = self.all.get(service).map(|drains| others(drains, backend, "still ")).unwrap_or_default();
        if let Some(why) = why_kept(&self.owner.snapshot.borrow(), service) {
            return Ok(format!(
                "the drain of {backend} of {service} ends later{others}{stored}: the service is in use as before the start, \
                 {why}"
            ));
        }
        if others.is_empty() {
            return Ok(format!("{backend} of {service} is no longer drained{stored}"));
        }
        Ok(format!("the drain of {backend} of {service} has ended{others}{stored}"))
    }

    /// Sends the drains of these services to the owner task, and waits until the maps have what follows.
    async fn apply(
        &mut self,
        causes: Vec<(ServiceName, DrainCause)>,
        is_done: impl Fn(&Snapshot, &ServiceName) -> bool,
    ) -> Result<(), Refusal> {
        let mut snapshot = self.owner.snapshot.clone();
        let services: Vec<ServiceName> = causes.iter().map(|(service, _)| service.clone()).collect();
        let changes = causes.into_iter().map(|(service, cause)| {
            let drains = self.all.get(&service).cloned().unwrap_or_default();
            Change::Drains(service, drains, Some(cause))
        });
        let changes = changes.collect();
        let applied = async {
            self.owner.send(changes).await.then_some(())?;
            let is_applied = |snapshot: &Snapshot, service: &ServiceName| {
                snapshot.facts.drains(service) == self.all.get(service) && is_done(snapshot, service)
            };
            let is_all = |snapshot: &Snapshot| services.iter().all(|service| is_applied(snapshot, service));
            snapshot.wait_for(|snapshot| is_all(snapshot)).await.ok().map(drop)
        };
        match timeout(APPLY_TIME, applied).await {
            Ok(Some(())) => Ok(()),
            _ => Err(Refusal::Failed(
                "the change is stored, and the maps do not have it yet: see `nodelb status`".into(),
            )),
        }
    }

    async fn tick(&mut self) {
        self.follow_clock().await;
        // A drain that was over at the start ends when its service is known, so that the history of the service has it.
        let is_late = self.started.elapsed() >= SYNC_TIME;
        let snapshot = self.owner.snapshot.borrow().clone();
        let is_known = |service: &ServiceName| {
            let owner = snapshot.facts.owner(service);
            owner.is_some_and(|(service, _)| snapshot.facts.is_synced(service.source))
        };
        let ended = end_over(&mut self.all, unix_now(), |service| is_late || is_known(service));
        if !ended.is_empty() {
            self.owner.send(ended).await;
            self.file.save(Arc::new(self.all.clone()));
        }
    }
}

/// Whether the maps offer the drained backend for new connections, except for a service that is held.
fn is_offered(snapshot: &Snapshot, service: &ServiceName, backend: Drained) -> bool {
    let own = snapshot.ports().filter(|(_, key)| key.service == *service);
    let mut own = own.filter(|(_, key)| snapshot.held().all(|port| port.key != **key));
    own.any(|(id, _)| includes(snapshot.realised.services.get(&id), backend))
}

/// Whether the maps offer the backend wherever they should.
fn has_desired(snapshot: &Snapshot, service: &ServiceName, backend: Drained) -> bool {
    let mut own = snapshot.ports().filter(|(_, key)| key.service == *service);
    own.all(|(id, _)| {
        let [desired, realised] = [&snapshot.desired, &snapshot.realised].map(|state| state.services.get(&id));
        !includes(desired, backend) || includes(realised, backend)
    })
}

fn includes(entry: Option<&Arc<ServiceEntry>>, backend: Drained) -> bool {
    let mut slots = entry.into_iter().flat_map(|entry| entry.cluster.iter().chain(&*entry.local));
    slots.any(|slot| backend.includes((slot.addr.addr, slot.addr.port)))
}

#[cfg(test)]
#[path = "tests/run.rs"]
pub(in crate::drains) mod tests;
