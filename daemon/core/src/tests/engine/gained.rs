//! What is served since a restart is in the history: as an event of a service, not only as the report of its source.

use super::*;
use crate::model::cause::Cause;
use crate::model::service::Origin;

/// The events about services: the service, the kind, its addresses and backends, the object, and the details.
fn told(round: &Round) -> Vec<(String, What, Vec<String>, Vec<String>, String, String)> {
    let texts = |list: &[L4Addr]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let tell = |event: &Event| {
        let service = event.port.as_ref()?.service.to_string();
        let (at, added) = (texts(&event.frontends.shown), texts(&event.added.shown));
        let detail = event.detail.as_deref().unwrap_or_default().to_owned();
        Some((service, event.what, at, added, event.cause.origin.object.to_string(), detail))
    };
    round.events.iter().filter_map(tell).collect()
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

fn event(
    of: &str,
    what: What,
    at: &str,
    added: &[&str],
    detail: &str,
) -> (String, What, Vec<String>, Vec<String>, String, String) {
    let added = added.iter().map(|text| format!("{text}/TCP")).collect();
    (of.into(), what, vec![format!("{at}/TCP")], added, format!("{of}.toml"), detail.into())
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
        assert_eq!(told(&round), []);
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
        assert_eq!(told(&run.send([web, web_list, incomplete()])), []);
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
