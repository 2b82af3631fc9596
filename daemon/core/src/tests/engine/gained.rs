//! What is served since a restart is in the history: as an event of a service, not only as the report of its source.

use super::*;
use crate::model::cause::Cause;
use crate::model::service::Origin;

/// An event about a service: its name, the kind, its addresses and backends, the object, and the details.
type EventRow = (String, What, Vec<String>, Vec<String>, String, String);

/// The events about services.
fn rows(round: &Round) -> Vec<EventRow> {
    let texts = |list: &[L4Addr]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let row = |event: &Event| {
        let service = event.port.as_ref()?.service.to_string();
        let (at, added) = (texts(&event.frontends.shown), texts(&event.added.shown));
        let detail = event.detail.as_deref().unwrap_or_default().to_owned();
        Some((service, event.what, at, added, event.cause.origin.object.to_string(), detail))
    };
    round.events.iter().filter_map(row).collect()
}

fn of_file(service: Service) -> Change {
    let origin = Origin { object: format!("{}.toml", service.name).into(), ..Origin::default() };
    Change::UpsertService(Service { origin, ..service })
}

const THIRD: &str = "198.51.100.3:80";

fn with_third() -> Change {
    let mut web = service("shop/web", WEB);
    web.ports[0].frontends.push(FrontendSpec { addr: l4(THIRD).addr, port: 80, kind: FrontendKind::Static });
    of_file(web)
}

fn event(of: &str, what: What, at: &str, added: &[&str], detail: &str) -> EventRow {
    let added = added.iter().map(|text| format!("{text}/TCP")).collect();
    (of.into(), what, vec![format!("{at}/TCP")], added, format!("{of}.toml"), detail.into())
}

#[test]
fn what_is_served_since_a_restart_is_in_the_history() {
    let mut run = Run::first();
    let web = || [of_file(service("shop/web", WEB)), list("shop/web", &[BACKEND])];
    let own_service = || [of_file(service("shop/own", OTHER)), list("shop/own", &[BACKEND])];
    run.send([own(&[OTHER])].into_iter().chain(web()).chain(own_service()).chain([synced()]));
    assert_eq!(run.status(OTHER).0, Status::Refused);
    let mut run = run.restarted();
    let new = [of_file(service("shop/new", "198.51.100.4:80")), list("shop/new", &[BACKEND])];
    let [_, web_list] = web();
    let changes = [own(&[]), with_third(), web_list].into_iter().chain(own_service()).chain(new).chain([synced()]);
    let (mut events, admitted) = (rows(&run.send(changes.clone())), format!("{OTHER}/TCP is served"));
    events.sort_by_key(|event| event.0.clone());
    assert_eq!(events[0], event("shop/new", What::Added, "198.51.100.4:80", &[BACKEND], NOT_SEEN));
    assert!((events[1].1, &events[1].2[..]) == (What::Admitted, &[format!("{OTHER}/TCP")]), "{events:?}");
    assert!(
        events[1].5.starts_with(&admitted) && events[1].4.is_empty(),
        "why it was refused is not known: {events:?}"
    );
    assert_eq!(events[2], event("shop/web", What::Changed, THIRD, &[], NOT_SEEN));
    assert_eq!(events.len(), 3);
    assert_eq!(reported(&run.restarted().send(changes)), [], "a restart that changes nothing");
}

/// Services and lists of Kubernetes arrive one after the other, and `synced` follows.
#[test]
fn lists_that_a_new_service_gets_before_its_source_is_synced_are_in_the_history() {
    let mut run = Run::first();
    run.send(objects().into_iter().chain([synced()]));
    let mut run = run.restarted();
    let third = || of_file(service("shop/third", THIRD));
    run.send(objects());
    assert_eq!(rows(&run.send([third()])), [], "it has no backends yet, so that the address waits");
    let round = run.send([list("shop/third", &[BACKEND])]);
    assert_eq!(rows(&round), [event("shop/third", What::Added, THIRD, &[BACKEND], NOT_SEEN)]);
    let kinds = |round: &Round| rows(round).into_iter().map(|it| it.1).collect::<Vec<_>>();
    for more in [&[BACKEND, "192.0.2.2:80"][..], &[BACKEND]] {
        // The rest of its lists is awaited for a moment.
        let first = run.send([list("shop/third", more)]);
        run.now = run.now.plus(10_000);
        let rounds = [first, run.send([])];
        assert_eq!(rounds.each_ref().map(kinds).concat(), [What::Changed], "{more:?}");
    }
    run.send([list("shop/third", &[])]);
    assert_eq!(kinds(&run.send([synced()])), [What::Emptied]);
}

#[test]
fn an_address_that_a_file_takes_while_no_api_server_responds_is_in_the_history_at_once() {
    let mut run = without_kubernetes();
    let file = [of_file(service("shop/file", WEB)), list("shop/file", &[BACKEND])];
    let round = run.send(file.into_iter().chain([synced()]));
    let taken = format!("takes over {WEB}/TCP from shop/api:http/TCP/IPv4");
    assert_eq!(rows(&round)[0], event("shop/file", What::TakenOver, WEB, &[], &taken));
    let at = vec![format!("{WEB}/TCP")];
    let lost = ("shop/api".to_owned(), What::Changed, at, NOT_SEEN.to_owned());
    assert_eq!(reported(&round)[1..], [lost], "it may be described by an API server that does not respond");
    let moved = run.now.0;
    assert_eq!(run.status(WEB), (Status::Ok, moved));
    let round = run.send(of_kubernetes().into_iter().chain([synced_kubernetes()]));
    let kinds: Vec<_> = reported(&round).into_iter().map(|(service, what, ..)| (service, what)).collect();
    assert_eq!(kinds, [("shop/api".to_owned(), What::Conflict)], "the rest is reported");
    assert_eq!(run.status(WEB), (Status::Ok, moved));
}

/// Otherwise the history blames the file, which is the same.
#[test]
fn a_restart_with_other_packets_mode_changes_no_list() {
    let mut run = Run::first();
    run.datapath = MemoryDatapath::new(rig::ROOM);
    run.engine = rig::engine_on(&run.datapath, rig::ON);
    let web = || [of_file(rig::exposed(None)), list("shop/web", &[BACKEND])];
    run.send(web().into_iter().chain([synced()]));
    for packets in [PacketsConfig::default(), rig::ON] {
        run = Run { engine: rig::engine_on(&run.datapath, packets), ..run };
        let round = run.send(web().into_iter().chain([synced()]));
        assert!(round.done > 0, "the maps change");
        assert_eq!(rows(&round), []);
    }
}

fn incomplete() -> Change {
    Change::Synced { source: Source::Files, incomplete: Some("b.toml cannot be used".into()) }
}

/// Connections get the same all the time: only what is known about it changes.
#[test]
fn the_end_of_kept_is_no_new_service() {
    let mut run = Run::first();
    run.send(objects().into_iter().chain([synced()]));
    let restarted = |run: Run| {
        let mut run = run.restarted();
        let [web, web_list, ..] = objects();
        assert_eq!(rows(&run.send([web, web_list, incomplete()])), []);
        assert_eq!(run.status(OTHER).0, Status::Kept);
        run
    };
    let mut run = restarted(run);
    let file = || of_file(service("shop/other", OTHER));
    let round = run.send([file(), list("shop/other", &[BACKEND]), synced()]);
    let [event] = &round.events[..] else { panic!("{:?}", round.events) };
    assert_eq!(event.what, What::Released);
    assert!(event.detail.as_ref().is_some_and(|text| text.contains("no longer Kept")), "{event:?}");
    assert!(event.added.is_empty() && event.frontends.is_empty(), "{event:?}");
    // Its list has changed meanwhile, or it has one more address.
    let mut run = restarted(run);
    let round = run.send([file(), list("shop/other", &["192.0.2.2:80"]), synced()]);
    let [event] = &round.events[..] else { panic!("{:?}", round.events) };
    assert_eq!((event.what, event.added.shown.len(), event.removed.shown.len()), (What::Changed, 1, 1));
    assert_eq!((event.frontends.shown.len(), &event.detail), (0, &None));
    let mut run = restarted(run);
    let mut other = service("shop/other", OTHER);
    other.ports[0].frontends.push(FrontendSpec { addr: l4(THIRD).addr, port: 80, kind: FrontendKind::Static });
    let round = run.send([Change::UpsertService(other), list("shop/other", &["192.0.2.2:80"]), synced()]);
    let [event] = &round.events[..] else { panic!("{:?}", round.events) };
    assert_eq!(
        (event.what, &event.frontends.shown[..], &event.cause),
        (What::Changed, &[l4(THIRD)][..], &Cause::default())
    );
}
