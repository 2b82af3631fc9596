use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};

use nodelb_datapath::Direction;

use nodelb_datapath::xtables::LegacyTables;

use super::*;
use crate::sockets::reaper::wire::{HEADER, Hello, Outcome, encode_outcomes};

/// An order to look for the rules of kube-proxy.
const RULES: Order = Order::Rules(LegacyTables { v4: true, v6: false });

/// Answers as many orders of each connection with this outcome, one connection after the other.
fn reapers(path: &Path, connections: Vec<(usize, Outcome)>) -> JoinHandle<Vec<Order>> {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let mut orders = Vec::new();
        for (count, outcome) in connections {
            let (mut line, _) = listener.accept().unwrap();
            line.write_all(&Hello { everywhere: true }.encode()).unwrap();
            for _ in 0..count {
                orders.push(receive(&mut line));
                line.write_all(&encode_outcomes(&[outcome])).unwrap();
            }
        }
        orders
    })
}

fn receive(line: &mut UnixStream) -> Order {
    let mut header = [0; HEADER];
    line.read_exact(&mut header).unwrap();
    let mut body = vec![0; Order::length(header).unwrap()];
    line.read_exact(&mut body).unwrap();
    Order::decode(header, &body).unwrap()
}

const FOUND: Outcome = Outcome { destroyed: 3, errno: 0 };
const REFUSED: Outcome = Outcome { destroyed: 0, errno: nix::errno::Errno::EPERM as i32 };

#[tokio::test]
async fn a_reaper_that_has_ended_is_replaced_at_the_next_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("reaper.sock");
    let answered = reapers(&path, vec![(2, FOUND), (1, REFUSED)]);
    let reaper = PacketReaper::new(Reaper::Behind(path));
    for _ in 0..2 {
        assert_eq!(reaper.order(&RULES, None).await.unwrap(), 3);
    }
    let refused = reaper.order(&RULES, None).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(answered.join().unwrap(), [RULES, RULES, RULES]);
    assert!(reaper.order(&RULES, None).await.is_err(), "no reaper is left");
}

#[tokio::test]
async fn changes_of_filters_are_orders() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("reaper.sock");
    let answered = reapers(&path, vec![(2, FOUND)]);
    let changes = ByReaper { reaper: PacketReaper::new(Reaper::Behind(path)), runtime: Handle::current() };
    let wanted = [FilterChange::AddQdisc, FilterChange::Remove(Direction::Out)];
    let task = tokio::task::spawn_blocking(move || wanted.map(|change| changes.change(7, change, None)));
    assert!(task.await.unwrap().iter().all(Result::is_ok));
    assert_eq!(answered.join().unwrap(), wanted.map(|change| Order::Filter { ifindex: 7, change }));
}
