use std::net::TcpListener;

use nodelb_prober::Backend;

use super::*;

#[test]
fn flows() {
    let flow: Flow = "web,long-udp,[2001:db8::1]:81".parse().unwrap();
    assert_eq!(
        flow,
        Flow {
            name: "web long-udp".to_owned(),
            long: true,
            transport: Transport::Udp,
            to: "[2001:db8::1]:81".parse().unwrap()
        }
    );
    for text in ["web,new-tcp", "web,tcp,192.0.2.1:80", "web,new-tcp,192.0.2.1"] {
        assert!(text.parse::<Flow>().is_err(), "{text}");
    }
}

#[test]
fn flows_run_until_the_file_exists() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let backend = Backend::start("one", &[(Transport::Tcp, free), (Transport::Udp, free)]).unwrap();
    let flow = |kind: &str| format!("web,{kind},{free}").parse::<Flow>().unwrap();
    let closed: Flow = "web,long-tcp,127.0.0.1:1".parse().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let stop = directory.path().join("stop");
    thread::spawn(move || backend.serve());
    let end = stop.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        std::fs::write(end, "").unwrap();
    });
    let text = run(&stop, &[flow("new-tcp"), flow("long-udp"), closed]);
    let counts: Vec<Count> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(counts.iter().map(|count| count.failed).collect::<Vec<_>>(), [0, 0, 1], "{text}");
    assert!(counts[..2].iter().all(|count| count.ok > 5), "{text}");
}
