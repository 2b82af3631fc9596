//! Services without a backend: refused at once, with an error that shows the reason, and never with
//! EPERM.

use nix::errno::Errno;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::state::entries::{FrontendEntry, MapOp, ServiceEntry, ServiceId};

use super::{Kernel, SocketMode, exchange, in_sandbox, l4, list, options, put, target};

#[test]
fn the_errno_shows_the_reason() {
    in_sandbox("sockets::refusal::the_errno_shows_the_reason", |env| {
        let mut kernel = Kernel::open(&options(env));
        let elsewhere = |backend: &str| ServiceEntry {
            cluster: list(&[backend]),
            local: list(&[]),
            has_backends: true,
            ..ServiceEntry::default()
        };
        for (id, family) in [(10, "198.51.100."), (20, "[2001:db8:f::")] {
            for (protocol, modes) in [
                ("TCP", [SocketMode::Tcp].as_slice()),
                ("UDP", &[SocketMode::UdpConnected, SocketMode::UdpUnconnected]),
            ] {
                let close = if family.starts_with('[') { "]" } else { "" };
                let at = |host: u32| l4(&format!("{family}{host}{close}:80/{protocol}"));
                let backend = if close.is_empty() { "192.0.2.10:1/" } else { "[2001:db8:b::10]:1/" };
                let (no_backend, not_here): (L4Addr, L4Addr) = (at(1), at(2));
                let local = |id| FrontendEntry { service: ServiceId(id), inside_local: true, outside_local: false };
                kernel.apply(&[
                    put(id, ServiceEntry::default()),
                    put(id + 1, elsewhere(&format!("{backend}{protocol}"))),
                    MapOp::PutFrontend(no_backend, FrontendEntry { inside_local: false, ..local(id) }),
                    MapOp::PutFrontend(not_here, local(id + 1)),
                ]);
                for (mode, mapped) in modes.iter().flat_map(|mode| [(*mode, false), (*mode, true)]) {
                    let errno =
                        |to| exchange(mode, target(to, mapped)).unwrap_err().raw_os_error().map(Errno::from_raw);
                    assert_eq!(errno(no_backend), Some(Errno::ECONNREFUSED), "{mode:?} {no_backend}");
                    assert_eq!(errno(not_here), Some(Errno::EHOSTUNREACH), "{mode:?} {not_here}");
                }
            }
        }
    });
}
