use std::fs;
use std::path::Path;

use nodelb_core::datapath::Limits;
use nodelb_core::history::{Event, Kernel, Stamp, What};
use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{PortKey, Source};
use nodelb_core::state::entries::{BackendId, FrontendEntry, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::owner::OwnerTag;
use serde_json::Value;
use tempfile::TempDir;

use super::*;

fn key() -> PortKey {
    let (service, protocol, family) = ("shop/web".parse().unwrap(), Protocol::Tcp, Family::Ipv4);
    PortKey { service, port: "".into(), protocol, family }
}

/// A reader with files in this directory, and these maps.
fn reader(directory: &Path, state: Option<MapState>) -> Reader {
    let mut config = Config::default();
    config.datapath.pin_directory = directory.join("pins");
    config.state.directory = directory.join("state");
    config.files.directory = directory.join("services.d");
    let reader = Reader { config, ..Reader::default() };
    if let Some(state) = state {
        let limits = Limits { frontends: 10, services: 20, slots: 30, affinity: 40, outside: 0, source_ranges: 0 };
        let usage = maps::usage_of(&state, limits, (1, Some(2)));
        let nodeport_range = reader.config.datapath.nodeport_range.clone();
        let content = MapContent { state, names: reader.known_names(), nodeport_range, has_outside: false };
        assert!(reader.maps.set(Ok(ReadMaps { content, usage })).is_ok());
    }
    reader
}

/// `shop/web` at 198.51.100.1:80 with one backend.
fn held() -> MapState {
    let slot = Slot { backend: BackendId(1), addr: "192.0.2.1:8080".parse().unwrap() };
    let tag = Some(OwnerTag::new(&key(), Source::Files));
    let entry = ServiceEntry { cluster: [slot].into(), has_backends: true, tag, ..ServiceEntry::default() };
    let frontend = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
    let mut state = MapState::default();
    state.services.insert(ServiceId(1), entry.into());
    state.frontends.insert("198.51.100.1:80".parse().unwrap(), frontend);
    state
}

fn directory(file: Option<&str>) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("services.d")).unwrap();
    fs::create_dir(directory.path().join("state")).unwrap();
    if let Some(file) = file {
        fs::write(directory.path().join("services.d/web.toml"), file).unwrap();
    }
    directory
}

const WEB: &str = "[[service]]\nname = \"shop/web\"\nfrontends = [\"198.51.100.1:80\"]\nbackends = [\"192.0.2.9:1\"]\n";

fn asked(reader: &Reader, target: &str) -> Value {
    serde_json::from_slice(&reader.answer(target).unwrap()).unwrap()
}

fn refused(reader: &Reader, target: &str) -> (Code, String) {
    let failure = reader.answer(target).unwrap_err();
    (failure.code, failure.to_string())
}

/// The file gives names and kinds; what is in the maps counts, not what the file contains now.
#[test]
fn every_answer_has_the_rows_of_the_daemon() {
    let directory = directory(Some(WEB));
    let reader = reader(directory.path(), Some(held()));
    let frontends = asked(&reader, "/frontends?output=json");
    let row = &frontends["frontends"][0];
    assert_eq!((&row["service"], &row["type"], &row["status"]), (&"shop/web".into(), &"Static".into(), &"OK".into()));
    assert_eq!((&row["backends"], &row["since"]), (&json!(["192.0.2.1:8080/TCP"]), &Value::Null));
    let backends = asked(&reader, "/backends?service=shop/web");
    assert_eq!((&backends["backends"][0]["weight"], &backends["backends"][0]["state"]), (&1.into(), &Value::Null));
    let maps = asked(&reader, "/maps?service=shop/web");
    assert_eq!(maps["services"][0]["service"], "shop/web/TCP/IPv4");
    assert_eq!((&maps["limits"][2]["used"], &maps["limits"][3]["used"]), (&1.into(), &2.into()));
    let trace = asked(&reader, "/trace?to=198.51.100.1:80&from=pod");
    let verdict = &trace["verdict"];
    assert_eq!((&verdict["verdict"], &verdict["service"]), (&"Forwarded".into(), &"shop/web".into()));
    assert_eq!(trace["trace"][3]["finding"], "forwarded to 192.0.2.1:8080/TCP");
    assert_eq!(asked(&reader, "/services?service=shop/web"), json!({"services": [{"service": "shop/web"}]}));
    assert_eq!(asked(&reader, "/services?service=shop/wep"), json!({"services": []}));
}

/// The programs decide about every packet to an address that only nodelb has.
#[test]
fn a_port_that_no_service_has_at_a_served_address_is_refused_from_outside() {
    let directory = directory(Some(WEB));
    let mut state = held();
    let entry = OutsideEntry { service: ServiceId(1), local: false, has_ranges: false };
    state.outside.insert("198.51.100.1:80".parse().unwrap(), entry);
    // A device of every host has this address.
    state.outside.insert("127.0.0.1:80".parse().unwrap(), entry);
    let reader = reader(directory.path(), Some(state));
    let traced = |to: &str, from: &str| {
        let answer = asked(&reader, &format!("/trace?to={to}&from={from}"));
        let steps = answer["trace"].as_array().unwrap();
        (answer["verdict"]["verdict"].clone(), steps.last().unwrap()["finding"].as_str().unwrap().to_owned())
    };
    let (verdict, finding) = traced("198.51.100.1:81", "outside");
    assert_eq!(verdict, "Refused");
    assert!(finding.starts_with("refused with RST: no service has this port"), "{finding}");
    assert_eq!(traced("198.51.100.1:80/SCTP", "outside").0, "Dropped");
    for (to, from) in [("198.51.100.1:81", "pod"), ("127.0.0.1:81", "outside"), ("198.51.100.2:81", "outside")] {
        assert_eq!(traced(to, from).0, "PassedThrough", "{to} from {from}");
    }
}

#[test]
fn a_drain_is_shown() {
    let directory = directory(Some(WEB));
    let entry = json!({ "service": key().service, "backend": "192.0.2.9", "by": "root", "since": 1, "until": null });
    let drains = json!({ "version": 1, "drains": [entry] });
    fs::write(directory.path().join("state/drains.json"), drains.to_string()).unwrap();
    let reader = reader(directory.path(), Some(held()));
    assert_eq!(asked(&reader, "/frontends")["frontends"][0]["flags"], json!(["Drained=1"]));
    let drained = &asked(&reader, "/backends")["backends"][1];
    assert_eq!((&drained["address"], &drained["choice"]), (&"192.0.2.9:1/TCP".into(), &"Maintenance".into()));
    let step = &asked(&reader, "/trace?to=198.51.100.1:80")["trace"][3];
    let finding = "192.0.2.9:1/TCP is drained by root until nodelb undrain: it gets no new connections";
    assert_eq!((&step["step"], &step["finding"]), (&"drain".into(), &finding.into()));
}

#[test]
fn a_name_that_no_file_has_is_absent() {
    let directory = directory(Some("not a service file"));
    let reader = reader(directory.path(), Some(held()));
    assert_eq!(asked(&reader, "/frontends")["frontends"][0]["service"], Value::Null);
    let finding = &asked(&reader, "/trace?to=198.51.100.1:80")["trace"][0]["finding"];
    let expected = "198.51.100.1:80/TCP is an address of the service with id 1; its name is unknown without the daemon";
    assert_eq!(finding, expected);
}

/// The daemon recorded a removal before it ended.
#[test]
fn the_recorded_changes_are_known() {
    let directory = directory(None);
    let mut history = History::default();
    let event = Event::for_port(&key().into(), Some(Source::Files), What::Removed, Cause::default());
    let withdrawn = ["198.51.100.7:80".parse().unwrap()].into_iter().collect();
    history.add(Event { withdrawn, kernel: Kernel::Done, ..event }, Stamp { at: 1_000, to_kernel: 0 });
    let line = serde_json::to_string(&**history.latest_first().next().unwrap()).unwrap() + "\n";
    fs::write(recorder::file_path(&directory.path().join("state")), line).unwrap();

    // As after a reboot: nothing is pinned.
    let rebooted = reader(directory.path(), None);
    assert_eq!(asked(&rebooted, "/history")["history"][0]["service"], "shop/web");
    let reader = reader(directory.path(), Some(MapState::default()));
    let rows = asked(&reader, "/history?address=198.51.100.7");
    assert_eq!((&rows["history"][0]["what"], &rows["history"][0]["detail"]), (&"Removed".into(), &Value::Null));
    assert_eq!(asked(&reader, "/history?address=198.51.100.8")["history"], json!([]));
    let trace = asked(&reader, "/trace?to=198.51.100.7:80");
    assert_eq!(trace["removed"]["service"], "shop/web");
    let step = trace["trace"][1]["finding"].as_str().unwrap();
    assert!(step.starts_with("until ") && step.ends_with(" ago this was shop/web"), "{step}");
}

/// As after a reboot of a node that has stored nothing.
#[test]
fn what_is_missing_is_said() {
    let directory = directory(None);
    let reader = reader(directory.path(), None);
    let (code, problem) = refused(&reader, "/frontends");
    assert!(code == Code::Unavailable && problem.starts_with("no maps of nodelb are pinned in /"), "{problem}");
    assert_eq!(reader.find_pins(), Pins::Absent(directory.path().join("pins")));
    assert_eq!(self::reader(directory.path(), Some(held())).find_pins(), Pins::Present);
    let (code, problem) = refused(&reader, "/history");
    assert!(code == Code::Unavailable && problem.starts_with("no changes are stored in /"), "{problem}");
    assert!(!directory.path().join("pins").exists(), "nothing is created");
    let (code, problem) = refused(&reader, "/status");
    assert_eq!((code, problem.as_str()), (Code::Unavailable, "/status needs the daemon"));
}

#[test]
fn a_client_that_only_the_daemon_can_find_is_refused() {
    let directory = directory(None);
    let reader = reader(directory.path(), Some(held()));
    let (code, problem) = refused(&reader, "/trace?to=198.51.100.1:80&from=192.0.2.7");
    assert!(code == Code::Unavailable && problem.contains("--from host, pod or outside"), "{problem}");
    let (code, problem) = refused(&reader, "/frontends?address=nonsense");
    assert!(code == Code::Usage && problem.contains("parameter `address`"), "{problem}");
}

/// A hung disk or network file system.
#[test]
fn a_state_directory_that_does_not_answer_leaves_only_the_names_unknown() {
    let directory = directory(None);
    let config = reader(directory.path(), None).config;
    let state = config.state.directory.display().to_string();
    let silent = Reader { config, answers: OnceCell::from(false), ..Reader::default() };
    assert_eq!(silent.silence(), Some(format!("names unknown: {state} does not answer")));
    let names = silent.known_names();
    let content = MapContent { state: held(), names, nodeport_range: 1..=2, has_outside: false };
    assert!(silent.maps.set(Ok(ReadMaps { content, usage: Vec::new() })).is_ok());
    let frontends = asked(&silent, "/frontends?output=json");
    assert_eq!(frontends["frontends"][0]["backends"], json!(["192.0.2.1:8080/TCP"]));
    let (_, history) = refused(&silent, "/history?output=json");
    assert!(history.ends_with("history.jsonl cannot be read: its file system does not answer"), "{history}");
    assert!(answers(directory.path()) && answers(Path::new("/nonexistent")));
}
