//! A restart changes nothing that was in use, whatever the last answer was and whatever happened to the file.

use super::*;

const OTHER: &str =
    "[[service]]\nname = \"shop/other\"\nfrontends = [\"198.51.100.11:8080\"]\nbackends = [\"192.0.2.9:80\"]\n";

/// A row's status and error.
type StatusRow = (Status, Option<String>);

/// Whether a service is held with this backend; that of the other service does not count.
fn held(backend: &str) -> impl Fn(&[StatusRow], &BTreeSet<String>) -> bool {
    move |rows, backends| {
        let others = backends.iter().filter(|it| !it.starts_with("192.0.2.9:")).collect::<Vec<_>>();
        others == [backend] && rows.iter().any(|(status, _)| *status == Status::Held)
    }
}

#[tokio::test]
async fn a_restart_while_no_target_has_an_address_keeps_the_backends() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    let owner = "_http._tcp.web.example";
    server.set(owner, SRV, Script::Records(vec![srv(owner, 1, [1, 1, 9000], "a.example")], Vec::new()));
    server.set_addresses("a.example", 1, &["192.0.2.7"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(FROM));
    rig.serves(Status::Ok, &["192.0.2.7:9000"]).await;
    server.set(owner, SRV, Script::Records(vec![srv(owner, 1, [1, 1, 9000], "gone.example")], Vec::new()));
    rig.serves(Status::Held, &["192.0.2.7:9000"]).await;
    let maps = rig.end().await;
    // The same answer, no answer, and maps without the backend, as after a reboot.
    for (maps, script) in
        [(maps, None), (MemoryDatapath::new(LIMITS), None), (MemoryDatapath::new(LIMITS), Some(Script::Silence))]
    {
        if let Some(script) = script {
            server.set(owner, SRV, script);
        }
        let mut rig = Rig::with(&[server.address], scratch.path(), bounds(), maps).await;
        rig.file(&service(FROM));
        rig.serves(Status::Held, &["192.0.2.7:9000"]).await;
        rig.settle(500).await;
        rig.serves(Status::Held, &["192.0.2.7:9000"]).await;
        rig.end().await;
    }
}

#[tokio::test]
async fn a_restart_while_the_answer_is_a_frontend_keeps_the_backends() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.7"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&format!("{OTHER}{}", service(WEB)));
    rig.until("both", |rows, _| rows.len() == 2 && rows.iter().all(|(status, _)| *status == Status::Ok)).await;
    server.set_addresses("web.example", 1, &["198.51.100.11"]);
    rig.until("held", held("192.0.2.7:8080")).await;
    let mut maps = rig.end().await;
    // Also with a file of an earlier version, which has the last answer alone, and with none.
    let path = scratch.path().join("names.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut form: serde_json::Value = serde_json::from_str(&text).unwrap();
    form["used"] = serde_json::Value::Array(Vec::new());
    for content in [Some(text), Some(form.to_string()), None] {
        match content {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let mut rig = Rig::with(&[server.address], scratch.path(), bounds(), maps).await;
        rig.file(&format!("{OTHER}{}", service(WEB)));
        rig.until("held", held("192.0.2.7:8080")).await;
        rig.settle(1_500).await;
        rig.until("still held", held("192.0.2.7:8080")).await;
        maps = rig.end().await;
    }
}

#[tokio::test]
async fn a_first_answer_without_records_does_not_empty_what_the_maps_have() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    let owner = "_http._tcp.web.example";
    let gone = Script::Records(vec![srv(owner, 1, [1, 1, 9000], "gone.example")], Vec::new());
    for (backends, record, name, negative, ends) in [
        (WEB, A, "web.example", Script::NoSuchName(1), true),
        (WEB, A, "web.example", Script::Records(Vec::new(), Vec::new()), false),
        (WEB, A, "web.example", Script::Code(ResponseCode::ServFail), false),
        (FROM, SRV, owner, gone, false),
    ] {
        server.set_addresses("web.example", 1, &["192.0.2.7"]);
        let target = vec![address("a.example", 1, "192.0.2.7")];
        server.set(owner, SRV, Script::Records(vec![srv(owner, 1, [1, 1, 8080], "a.example")], target));
        let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
        rig.file(&service(backends));
        rig.serves(Status::Ok, &["192.0.2.7:8080"]).await;
        let maps = rig.end().await;
        std::fs::remove_file(scratch.path().join("names.json")).unwrap();
        server.set(name, record, negative.clone());
        let bounds = Bounds { hold: Some(2_500), ..bounds() };
        let mut rig = Rig::with(&[server.address], scratch.path(), bounds, maps).await;
        rig.file(&service(backends));
        rig.serves(Status::Held, &["192.0.2.7:8080"]).await;
        assert!(rig.error().ends_with("192.0.2.7:8080/TCP stays in use"), "{}", rig.error());
        rig.settle(1_100).await;
        rig.serves(Status::Held, &["192.0.2.7:8080"]).await;
        if ends {
            rig.serves(Status::NoBackends, &[]).await;
        }
        server.set_addresses("web.example", 1, &["192.0.2.8"]);
        server.set(owner, SRV, Script::Records(vec![srv(owner, 1, [1, 1, 8080], "web.example")], Vec::new()));
        rig.serves(Status::Ok, &["192.0.2.8:8080"]).await;
        rig.end().await;
        std::fs::remove_file(scratch.path().join("names.json")).unwrap();
    }
}

#[tokio::test]
async fn a_name_that_no_server_answers_for_keeps_no_other_service() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.7"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&format!("{OTHER}{}", service(WEB)));
    rig.until("both", |rows, _| rows.len() == 2 && rows.iter().all(|(status, _)| *status == Status::Ok)).await;
    let mut maps = rig.end().await;
    std::fs::remove_file(scratch.path().join("names.json")).unwrap();
    for script in [Script::Code(ResponseCode::ServFail), Script::Silence] {
        server.set("web.example", A, script);
        let mut rig = Rig::with(&[server.address], scratch.path(), bounds(), maps).await;
        rig.file(&service(WEB));
        rig.serves(Status::Held, &["192.0.2.7:8080"]).await;
        assert_eq!(rig.datapath.dump().unwrap().frontends.len(), 1 + CANARIES.len());
        maps = rig.end().await;
    }
}

/// A disk that hangs at the start, after a reboot and without a server: its answers were once replaced by none.
#[tokio::test]
async fn answers_that_the_disk_has_late_are_used_then_and_kept_until_then() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.7"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.7:8080"]).await;
    rig.end().await;
    let (path, aside) = (scratch.path().join("names.json"), scratch.path().join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    let (answer, answers) = std::sync::mpsc::channel::<()>();
    let (answers, disk) = (std::sync::Mutex::new(answers), aside.clone());
    let read = move |_: &Path| {
        answers.lock().unwrap().recv().map_err(std::io::Error::other)?;
        state_file::read(&disk)
    };
    server.set("web.example", A, Script::Silence);
    let stored = state_file::load_with(path.clone(), ask_timeouts().of_file(), read).await;
    let maps = MemoryDatapath::new(LIMITS);
    let mut rig = Rig::continuing(stored, &[server.address], scratch.path(), bounds(), maps).await;
    rig.file(&service(WEB));
    rig.serves(Status::NoBackends, &[]).await;
    rig.settle(1_500).await;
    assert!(!path.exists(), "nothing replaces what is unread");
    answer.send(()).unwrap();
    rig.serves(Status::Held, &["192.0.2.7:8080"]).await;
    rig.end().await;
    assert_eq!(state_file::read(&path).unwrap().answers, state_file::read(&aside).unwrap().answers);
}
