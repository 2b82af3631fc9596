use nodelb_report::time::Time;
use std::net::SocketAddr;

use nodelb_kube::apiserver::address::{Address, Server};
use nodelb_kube::apiserver::endpoints::pool::{Outcome, Pool};
use nodelb_kube::apiserver::endpoints::timeouts::PoolTimeouts;
use nodelb_report::output::table::Style;
use nodelb_report::rows::Answer;

use super::super::*;

fn address(n: u8) -> Address {
    SocketAddr::from(([192, 0, 2, n], 6443)).into()
}

/// The second configured address is in use because the first has failed; a third is learned.
pub(crate) fn report() -> PoolReport {
    let servers = [1, 2].map(|n| Server { address: address(n), tls_server_name: None });
    let mut pool = Pool::new(&servers, PoolTimeouts::default(), 7, Moment(0));
    pool.note(Moment(1_000), &address(1), Outcome::Failed("cannot connect: connection refused".into()));
    pool.opened(Moment(2_000), &address(2));
    pool.learn(&[SocketAddr::from(([192, 0, 2, 3], 6443))].into(), Moment(3_000));
    PoolReport { pool: Some(pool), last_response: Some(Moment(9_000)), problem: None, not_renewed: None }
}

#[test]
fn the_pool_reads_as_documented() {
    let now = Clocks { moment: Moment(21_000), time: Time::from_seconds(1_700_000_000) };
    let text = apiservers(&report(), now).text(now.time, &Style::default());
    let expected = "\
apiservers:
Address         From        State    Since  In-Use  Worked  Failed  Error                               Why
192.0.2.1:6443  Configured  Failed   20s    no      -       20s     cannot connect: connection refused  probed again in WAIT
192.0.2.2:6443  Configured  Healthy  19s    yes     19s     -       -                                   192.0.2.1:6443, which is preferred, failed 20 s ago: cannot connect: connection refused
192.0.2.3:6443  Learned     Untried  18s    no      -       -       -                                   not needed yet

session:
Apiserver       Last-Response  Switches
192.0.2.2:6443  12s            0
";
    // The wait has a jitter that depends on the seed.
    let wait = text.lines().nth(2).and_then(|line| line.split("again in ").nth(1)).unwrap();
    assert_eq!(text, expected.replace("WAIT", wait));
}

#[test]
fn without_kubernetes_there_is_nothing_to_show() {
    let text = apiservers(&PoolReport::default(), Clocks::default()).text(Time::default(), &Style::default());
    assert_eq!(text, "Kubernetes is not configured (section [kubernetes] of nodelb.toml).\n");
}
