//! An upgrade to a version with another map layout, and the downgrade. The other version is the
//! current daemon with the entries of `bpf/next_layout.h`.

use std::cell::RefCell;

use crate::continuity::Traffic;
use crate::crash::at_every_step;
use crate::host::{Host, answering, backend, is_served_by, service};
use crate::links::{assert_replaced_in_place, attached};
use crate::sandbox;

const SERVICE: &str = "198.51.100.10:80";
const BACKENDS: [&str; 2] = ["192.0.2.11:8080", "192.0.2.12:8080"];

fn serve(host: &Host) -> [nodelb_prober::Backend; 2] {
    host.serve("stays.toml", &service("shop/stays", &[SERVICE], &BACKENDS));
    [backend("1", BACKENDS[0]), backend("2", BACKENDS[1])]
}

/// Starts the previous version, which must refuse.
fn assert_refused(host: &Host) {
    let pinned = host.pinned();
    let mut refused = host.spawn(None);
    assert!(!refused.wait_ready(), "it started all the same");
    // systemd does not restart it after this exit code.
    assert_eq!(refused.wait().code(), Some(78), "{}", host.log());
    host.assert_logged("contains maps of layout 2 from a newer nodelb");
    assert_eq!(host.pinned(), pinned);
    assert_eq!(answering(SERVICE), ["1", "2"]);
}

#[test]
fn the_next_layout_takes_over_and_the_way_back_is_refused() {
    sandbox::run("upgrade::the_next_layout_takes_over_and_the_way_back_is_refused", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = serve(&host);
        let old = host.start();
        let traffic = Traffic::start();
        let before = attached(&host.pins.join("v1/links"));

        host.use_layout(2);
        host.configure("[admin]\nlisten = [\"127.0.0.1:9891\"]");
        let mut early = host.spawn(None);
        assert!(!early.wait_ready(), "the old one still runs");
        assert_eq!(early.wait().code(), Some(69), "{}", host.log());
        host.assert_logged("another nodelb is running and uses");
        host.configure("");
        old.kill();
        let new = host.start();
        traffic.assert_unharmed("after the upgrade");
        host.assert_logged("new maps with the content of the previous maps of layout 1");
        assert_replaced_in_place(&before, &attached(&host.pins.join("v2/links")));
        assert!(!host.pins.join("v1").exists());
        new.kill();
        traffic.assert_unharmed("after kill -9");
        host.serve("more.toml", &service("shop/more", &["198.51.100.11:80"], &BACKENDS[..1]));
        let again = host.start();
        traffic.assert_unharmed("after another start");
        assert!(is_served_by("198.51.100.11:80/TCP", &["192.0.2.11:8080/TCP"]));
        again.stop();

        host.use_layout(1);
        assert_refused(&host);
        traffic.assert_unharmed("after the old version refused");
        host.use_layout(2);
        host.start().stop();
        traffic.finish();
        host.use_layout(1);
        host.cleanup();
    });
}

#[test]
fn a_crash_at_every_step_of_an_upgrade_is_nothing_to_either_version() {
    sandbox::run("upgrade::a_crash_at_every_step_of_an_upgrade_is_nothing_to_either_version", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = serve(&host);
        let old = || {
            host.use_layout(1);
            host.start().stop();
            host.use_layout(2);
            Some(Traffic::start())
        };
        let traffic = RefCell::new(old());
        let steps = at_every_step(
            &host,
            |_| {},
            |n| {
                let was = traffic.take().unwrap();
                was.assert_unharmed(&format!("crash after operation {n}"));
                let is_upgraded = host.pins.join("v2/g1").exists();
                let goes_back = n % 2 == 0;
                if goes_back {
                    host.use_layout(1);
                }
                if goes_back && is_upgraded {
                    assert_refused(&host);
                } else {
                    host.start().stop();
                }
                was.end(&format!("start after operation {n}"));
                host.cleanup();
                traffic.replace(old());
            },
        );
        assert!(steps >= 40, "only {steps} crash points");
        traffic.take().unwrap().finish();
    });
}
