//! Events about packets, for a reader who watches them.

use libbpf_rs::{MapCore as _, MapFlags};
use nodelb_core::state::entries::ServiceId;
use nodelb_datapath::packets::{EventFilter, EventReader, PacketEvent, PacketEvents, PacketVerdict};

use super::frames::{TCP, UDP, first, frame};
use super::translation::clear;
use super::{Lists, Node, PacketHook, SERVICE, V4, V6, with_node};

/// What a reader with this filter sees of the packets that `send` makes.
fn seen(node: &Node, filter: &EventFilter, send: impl Fn()) -> Vec<PacketEvent> {
    let events = PacketEvents::new(node.programs.maps()).unwrap();
    let (mut looks, mut seen) = (0, Vec::new());
    let mut wanted = || {
        looks += 1;
        if looks == 2 {
            send();
        }
        (looks <= 3).then(|| filter.clone())
    };
    events.read(&mut wanted, &mut |event| seen.push(event)).unwrap();
    seen
}

fn no_backend(node: &Node, protocol: u8) {
    node.serve(&Lists { protocol, has_backends: false, ..Lists::default() });
    node.publish(V4.service, protocol, 0);
}

#[test]
fn a_reader_sees_packets_before_and_after() {
    with_node("programs::events::a_reader_sees_packets_before_and_after", |node| {
        for family in [V4, V6] {
            for (backend, verdict) in
                [(family.pod, PacketVerdict::Translated), (family.remote, PacketVerdict::Redirected)]
            {
                node.serve_one(family, TCP, backend);
                let request = first(TCP, family.client, family.service).bytes();
                let events = seen(node, &EventFilter::default(), || {
                    node.run(PacketHook::UplinkIn, node.uplink, &request);
                });
                let [event] = &events[..] else { panic!("{events:?}") };
                assert_eq!((event.verdict, event.reason, event.service), (verdict, None, Some(ServiceId(SERVICE))));
                assert_eq!((event.ifindex, event.is_leaving), (node.uplink, false));
                let next = (verdict == PacketVerdict::Redirected).then_some(node.inner);
                assert_eq!(event.next_ifindex, next);
                assert_eq!((&event.before.bytes, event.before.has_ethernet), (&request, true));
                let after = super::frames::read(&event.after.as_ref().unwrap().bytes);
                assert_eq!(after.target, backend.parse().unwrap());
                clear(node);
            }
        }
    });
}

#[test]
fn a_reader_of_drops_sees_nothing_else() {
    with_node("programs::events::a_reader_of_drops_sees_nothing_else", |node| {
        let filter = EventFilter { only_dropped: true, ..EventFilter::default() };
        let events = seen(node, &filter, || {
            node.serve_one(V6, TCP, V6.pod);
            node.arrives(&first(TCP, V6.client, V6.service));
            for protocol in [TCP, UDP] {
                no_backend(node, protocol);
                node.run(PacketHook::UplinkIn, node.uplink, &first(protocol, V4.client, V4.service).bytes());
            }
            node.settings([0, 0, 0, 0]);
            node.run(PacketHook::UplinkIn, node.uplink, &first(UDP, V4.client, V4.service).bytes());
            let cut = first(TCP, V4.client, V4.service).bytes();
            node.run(PacketHook::UplinkIn, node.uplink, &cut[..40]);
        });
        let decided: Vec<_> = events.iter().map(|event| (event.verdict, event.reason, event.service)).collect();
        let service = Some(ServiceId(SERVICE));
        let expected = [
            (PacketVerdict::Rst, Some("no-backend"), service),
            (PacketVerdict::Icmp, Some("no-backend"), service),
            (PacketVerdict::Dropped, Some("no-backend"), service),
            (PacketVerdict::Passed, Some("short"), None),
        ];
        assert_eq!(decided, expected);
        assert!(events[0].after.is_some() && events[2].after.is_none() && events[3].after.is_none());
    });
}

#[test]
fn a_reader_of_a_service_sees_no_other_and_no_foreign_packet() {
    with_node("programs::events::a_reader_of_a_service_sees_no_other_and_no_foreign_packet", |node| {
        let send = || {
            no_backend(node, TCP);
            node.run(PacketHook::UplinkIn, node.uplink, &first(TCP, V4.client, V4.service).bytes());
            node.ignores("no service's", &frame(UDP, V4.client, "198.51.100.77:53").bytes());
        };
        let of = |id| EventFilter { services: Some([ServiceId(id)].into()), only_dropped: false };
        assert_eq!(seen(node, &of(SERVICE), send).len(), 1);
        assert_eq!(seen(node, &of(SERVICE + 1), send), []);
    });
}

/// A run of 1,500 packets takes two seconds at most.
#[test]
fn events_are_limited_and_end_with_the_reader() {
    with_node("programs::events::events_are_limited_and_end_with_the_reader", |node| {
        no_backend(node, TCP);
        let bytes = first(TCP, V4.client, V4.service).bytes();
        let send = || {
            for _ in 0..1500 {
                node.run(PacketHook::UplinkIn, node.uplink, &bytes);
            }
        };
        let begun = std::time::Instant::now();
        let received = seen(node, &EventFilter::default(), send).len();
        let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
        let events = PacketEvents::new(node.programs.maps()).unwrap();
        let lost = usize::try_from(events.lost()).unwrap();
        assert_eq!(received + lost, 1500);
        assert!(received >= 500 && received <= 1000 * seconds, "{received} in {seconds} s");
        node.run(PacketHook::UplinkIn, node.uplink, &bytes);
        assert_eq!(seen(node, &EventFilter::default(), || ()), [], "nothing was written without a reader");
        // A reader that has died leaves a lease that has passed.
        let watch = node.map("packet_watch");
        let mut value = watch.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        value[0] = 1;
        node.set("packet_watch", &[0; 4], &value);
        node.run(PacketHook::UplinkIn, node.uplink, &bytes);
        assert_eq!(watch.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap()[..8], [0; 8], "the program ends it");
    });
}
