use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use nodelb_host::register::Register;
use tokio::time::timeout;

use super::AdminSockets;
use crate::config::Admin;
use crate::http::Listener;

fn admin(listen: &[&str], socket: &std::path::Path) -> Admin {
    let listen = listen.iter().map(|address| address.parse().unwrap()).collect();
    Admin { listen, socket: socket.to_path_buf() }
}

#[tokio::test]
async fn an_address_that_cannot_be_opened_is_left_out_and_opened_later() {
    let directory = tempfile::tempdir().unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    // 192.0.2.1 is not an address of this host.
    let config = admin(&[&taken.to_string(), "192.0.2.1:9890", "127.0.0.1:0"], &directory.path().join("nodelb.sock"));
    let register: Register = Arc::new(|_| Ok(()));
    let mut admin_sockets = AdminSockets::open(&config, &register);
    let mut listeners = admin_sockets.listeners().unwrap();
    assert!(matches!(listeners.open.recv().await, Some(Listener::Tcp(_))), "127.0.0.1:0");
    assert!(matches!(listeners.open.recv().await, Some(Listener::Unix(_))));
    let why: Vec<String> = listeners.unopened.borrow().iter().map(|it| format!("{}: {}", it.address, it.why)).collect();
    assert_eq!(why.len(), 2, "{why:?}");
    assert!(why[0].contains("Address already in use") && why[0].contains("ss -ltnp"), "{why:?}");
    assert!(why[1].starts_with("192.0.2.1:9890: Cannot assign requested address"), "{why:?}");
    assert!(why[1].contains("remove it from admin.listen"), "{why:?}");

    drop(holder);
    let opened = timeout(Duration::from_secs(60), listeners.open.recv()).await.unwrap();
    let Some(Listener::Tcp(opened)) = opened else { panic!("a TCP listener is opened") };
    assert_eq!(opened.local_addr().unwrap(), taken);
    timeout(Duration::from_secs(60), listeners.unopened.wait_for(|left| left.len() == 1)).await.unwrap().unwrap();
    assert_eq!(listeners.unopened.borrow()[0].address.to_string(), "192.0.2.1:9890");
}

#[test]
fn a_host_without_the_address_family_is_named_as_the_reason() {
    let why = super::why(&std::io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    assert!(why.contains("no IPv6?"), "{why}");
    let why = super::why(&std::io::Error::from_raw_os_error(libc::EACCES));
    assert!(why.contains("above 1023"), "{why}");
}

#[tokio::test]
async fn every_listener_is_registered_before_it_is_bound_also_when_it_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let (seen_in, mut seen) = tokio::sync::watch::channel(Vec::new());
    let register: Register = Arc::new(move |socket| {
        let bound_to = socket2::SockRef::from(&socket).local_addr()?.as_socket();
        seen_in.send_modify(|seen| seen.push(bound_to.map(|at| at.port())));
        Ok(())
    });
    let config = admin(&["127.0.0.1:0", &taken.to_string()], &directory.path().join("nodelb.sock"));
    let mut admin_sockets = AdminSockets::open(&config, &register);
    let _listeners = admin_sockets.listeners().unwrap();
    let is_tried_again = |seen: &Vec<_>| seen.len() > 2;
    let seen = timeout(Duration::from_secs(60), seen.wait_for(is_tried_again)).await.unwrap().unwrap().clone();
    assert_eq!(seen[..3], [Some(0); 3], "no port yet");
}

#[test]
fn a_port_that_no_process_has_is_explained() {
    let why = super::why(&std::io::Error::from_raw_os_error(libc::EADDRINUSE));
    assert!(why.contains("if ss shows none, the programs of another nodelb protect it as a NodePort"), "{why}");
}

/// The directory of the socket is removed and made again, for example by a cleanup of /run.
#[tokio::test]
async fn a_socket_whose_directory_was_removed_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let path = run.join("nodelb.sock");
    let register: Register = Arc::new(|_| Ok(()));
    // Not there at the start either.
    let mut admin_sockets = AdminSockets::open(&admin(&[], &path), &register);
    let mut listeners = admin_sockets.listeners().unwrap();
    for _ in 0..2 {
        std::fs::create_dir(&run).unwrap();
        // One may have been opened while the directory was being removed.
        let mut opened = Vec::new();
        while std::os::unix::net::UnixStream::connect(&path).is_err() {
            opened.extend(timeout(Duration::from_secs(60), listeners.open.recv()).await.unwrap());
        }
        assert!(matches!(opened[..], [.., Listener::Unix(_)]));
        std::fs::remove_dir_all(&run).unwrap();
    }
}

/// Another thread may be looking after the socket at the end of the daemon.
#[test]
fn the_socket_is_removed_while_it_is_looked_after() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nodelb.sock");
    let register: Register = Arc::new(|_| Ok(()));
    let admin_sockets = AdminSockets::open(&admin(&[], &path), &register);
    assert!(path.exists());
    let looked_after = Arc::clone(&admin_sockets.socket);
    drop(admin_sockets);
    assert!(!path.exists());
    super::locked(&looked_after).keep();
    assert!(!path.exists(), "no other one is opened");
}
