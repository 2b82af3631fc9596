//! Services without a backend: refused at once, with an error that shows the reason, and never with
//! EPERM.

use nix::errno::Errno;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::state::entries::{FrontendEntry, MapOp, ServiceEntry, ServiceId};

use super::{Kernel, Manner, dial, in_sandbox, l4, list, options, put, target};

#[test]
fn the_error_tells_why() {
    in_sandbox("sockets::refusal::the_error_tells_why", |env| {
        let mut kernel = Kernel::open(&options(env));
        let elsewhere = |backend: &str| ServiceEntry {
            cluster: list(&[backend]),
            local: list(&[]),
            has_backends: true,
            ..ServiceEntry::default()
        };
        for (id, family) in [(10, "198.51.100."), (20, "[2001:db8:f::")] {
            for (protocol, manners) in
                [("TCP", [Manner::Tcp].as_slice()), ("UDP", &[Manner::UdpConnected, Manner::UdpUnconnected])]
            {
                let close = if family.starts_with('[') { "]" } else { "" };
                let at = |host: u32| l4(&format!("{family}{host}{close}:80/{protocol}"));
                let backend = if close.is_empty() { "192.0.2.10:1/" } else { "[2001:db8:b::10]:1/" };
                let (nobody, not_here): (L4Addr, L4Addr) = (at(1), at(2));
                let local = |id| FrontendEntry { service: ServiceId(id), inside_local: true, outside_local: false };
                kernel.apply(&[
                    put(id, ServiceEntry::default()),
                    put(id + 1, elsewhere(&format!("{backend}{protocol}"))),
                    MapOp::PutFrontend(nobody, FrontendEntry { inside_local: false, ..local(id) }),
                    MapOp::PutFrontend(not_here, local(id + 1)),
                ]);
                for (manner, mapped) in manners.iter().flat_map(|manner| [(*manner, false), (*manner, true)]) {
                    let errno = |to| dial(manner, target(to, mapped)).unwrap_err().raw_os_error().map(Errno::from_raw);
                    assert_eq!(errno(nobody), Some(Errno::ECONNREFUSED), "{manner:?} {nobody}");
                    assert_eq!(errno(not_here), Some(Errno::EHOSTUNREACH), "{manner:?} {not_here}");
                }
            }
        }
    });
}
