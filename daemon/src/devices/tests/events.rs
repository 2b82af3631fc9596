use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nodelb_datapath::packets::{Captured, PacketVerdict};

use super::*;

/// Events from a channel. What the programs are to report is sent to another one.
pub(crate) struct FakeReader {
    pub(crate) events: Mutex<mpsc::Receiver<PacketEvent>>,
    pub(crate) filters: mpsc::Sender<Option<EventFilter>>,
    pub(crate) lost: Arc<AtomicU64>,
}

impl EventReader for FakeReader {
    fn read(
        &self,
        wanted: &mut dyn FnMut() -> Option<EventFilter>,
        see: &mut dyn FnMut(PacketEvent),
    ) -> io::Result<()> {
        let mut last = None;
        loop {
            let filter = wanted();
            if last.as_ref() != Some(&filter) {
                self.filters.send(filter.clone()).unwrap();
                last = Some(filter.clone());
            }
            if filter.is_none() {
                return Ok(());
            }
            if let Ok(event) = self.events.lock().unwrap().recv_timeout(Duration::from_millis(5)) {
                see(event);
            }
        }
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// An event about a packet of this service.
pub(crate) fn event(service: u32, verdict: PacketVerdict, reason: Option<&'static str>) -> PacketEvent {
    PacketEvent {
        time: 0,
        ifindex: 2,
        next_ifindex: None,
        is_leaving: false,
        service: Some(ServiceId(service)),
        verdict,
        reason,
        before: Captured { bytes: vec![0x45, 0], length: 2, has_ethernet: false },
        after: None,
    }
}

/// Readers, the way to send them events, and what the programs are to report.
pub(crate) fn watchers() -> (PacketWatchers, mpsc::Sender<PacketEvent>, mpsc::Receiver<Option<EventFilter>>) {
    let (watchers, send, filter, _) = watchers_that_lose();
    (watchers, send, filter)
}

type Losing = (PacketWatchers, mpsc::Sender<PacketEvent>, mpsc::Receiver<Option<EventFilter>>, Arc<AtomicU64>);

/// The same with the number of events that the programs did not write.
pub(crate) fn watchers_that_lose() -> Losing {
    let ((send, events), (filters, filter)) = (mpsc::channel(), mpsc::channel());
    let lost = Arc::<AtomicU64>::default();
    let reader = FakeReader { events: Mutex::new(events), filters, lost: Arc::clone(&lost) };
    (PacketWatchers::new(reader), send, filter, lost)
}

fn of(ids: &[u32]) -> EventFilter {
    EventFilter { services: Some(ids.iter().map(|id| ServiceId(*id)).collect()), only_dropped: false }
}

#[tokio::test]
async fn each_reader_gets_its_events_and_the_programs_the_union() {
    let (watchers, send, filters) = watchers();
    let mut one = watchers.watch(of(&[1]));
    let first = EventFilter { services: Some([ServiceId(1)].into()), only_dropped: false };
    assert_eq!(filters.recv().unwrap(), Some(first));
    let mut drops = watchers.watch(EventFilter { only_dropped: true, ..of(&[2]) });
    let both = EventFilter { services: Some([ServiceId(1), ServiceId(2)].into()), only_dropped: false };
    assert_eq!(filters.recv().unwrap(), Some(both));
    assert_eq!(watchers.counts(), (2, 0));
    let dropped = event(2, PacketVerdict::Dropped, Some("no-route"));
    for event in [event(1, PacketVerdict::Translated, None), event(2, PacketVerdict::Translated, None), dropped.clone()]
    {
        send.send(event).unwrap();
    }
    assert_eq!(*one.next().await.unwrap(), event(1, PacketVerdict::Translated, None));
    assert_eq!(*drops.next().await.unwrap(), dropped);
    assert_eq!((one.take(), drops.take()), (None, None));
}

#[tokio::test]
async fn reading_ends_with_the_last_reader_and_begins_with_the_next() {
    let (watchers, _send, filters) = watchers();
    let all = Some(EventFilter::default());
    let reader = watchers.watch(EventFilter::default());
    assert_eq!(filters.recv().unwrap(), all);
    drop(reader);
    assert_eq!(filters.recv().unwrap(), None, "the task ends");
    let _reader = watchers.watch(EventFilter::default());
    assert_eq!(filters.recv().unwrap(), all);
    assert_eq!(watchers.counts(), (1, 0));
}

#[tokio::test]
async fn a_slow_reader_misses_events_and_learns_how_many() {
    let (watchers, send, _filters) = watchers();
    let mut slow = watchers.watch(EventFilter::default());
    let mut fast = watchers.watch(of(&[9]));
    for _ in 0..QUEUE + 100 {
        send.send(event(1, PacketVerdict::Translated, None)).unwrap();
    }
    send.send(event(9, PacketVerdict::Translated, None)).unwrap();
    fast.next().await.unwrap();
    let mut taken = 0;
    while slow.take().is_some() {
        taken += 1;
    }
    let [first, second] = [slow.take_lost(), slow.take_lost()].map(|lost| lost.number);
    assert_eq!((taken, first, second), (QUEUE, 101, 0));
}

/// Once, a client of one service got the number of lost packets of all services.
#[tokio::test]
async fn what_others_may_have_lost_is_at_most_one_s_own() {
    let (watchers, _send, _filters, lost) = watchers_that_lose();
    let mut one = watchers.watch(of(&[1]));
    lost.store(5, Ordering::Relaxed);
    assert!(one.has_lost());
    assert_eq!(one.take_lost(), Lost { number: 5, is_at_most: false });
    let mut all = watchers.watch(EventFilter::default());
    lost.store(7, Ordering::Relaxed);
    assert_eq!(one.take_lost(), Lost { number: 2, is_at_most: true });
    assert_eq!(all.take_lost(), Lost { number: 2, is_at_most: false });
    lost.store(8, Ordering::Relaxed);
    drop(all);
    assert_eq!(one.take_lost(), Lost { number: 1, is_at_most: true }, "the other one was there meanwhile");
    assert!(!one.has_lost());
    lost.store(9, Ordering::Relaxed);
    assert_eq!(one.take_lost(), Lost { number: 1, is_at_most: false });
}
