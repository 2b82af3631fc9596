//! What loading the programs costs: each start of the daemon waits for the kernel's verifier, on a CPU that clients want.

use libbpf_rs::query::ProgInfoIter;

use super::{Kernel, in_sandbox, options};
use crate::links::{Attached, attached};

/// Instructions that the verifier looks at in one program. It is 10,200 at most on 6.18, and fewer on 6.1, where the
/// tables of sockets are not used.
const ONE: u32 = 11_000;
/// In all of them; 50,300 on 6.18, and fewer on 6.1. A seventh of that finds the addresses of a socket's network namespace
/// (`bpf/clients.h`), once in each of the four programs that choose a backend.
const ALL: u32 = 57_000;

#[test]
fn the_verifier_is_soon_done() {
    in_sandbox("sockets::verifier::the_verifier_is_soon_done", |env| {
        let options = options(env);
        let _kernel = Kernel::open(&options);
        let mut all = 0;
        let attached = attached(&options.pin_directory.join("v1/links"));
        for Attached { hook, program, .. } in &attached {
            let info = ProgInfoIter::default().find(|info| info.id == *program).unwrap();
            assert!((1..=ONE).contains(&info.verified_insns), "{hook}: {} instructions", info.verified_insns);
            all += info.verified_insns;
        }
        assert_eq!(attached.len(), 10);
        assert!(all <= ALL, "{all} instructions in all");
    });
}
