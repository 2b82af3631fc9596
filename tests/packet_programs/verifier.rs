//! What loading costs: each start of the daemon waits for the kernel's verifier.

use libbpf_rs::query::ProgInfoIter;

use super::with_node;

/// Instructions that the verifier looks at in one program.
const MOST: u32 = 100_000;

/// The programs of all tests that run at the same time have the same names.
#[test]
fn the_verifier_is_soon_done() {
    with_node("programs::verifier::the_verifier_is_soon_done", |node| {
        assert!(node.uplink > 0);
        let is_ours = |name: &str| ["packet_in", "packet_out", "pod_in", "pod_out"].contains(&name);
        let ours: Vec<_> = ProgInfoIter::default().filter(|info| is_ours(&info.name.to_string_lossy())).collect();
        assert!(ours.len() >= 8, "four programs for each kind of device");
        for info in ours {
            println!("{:?}: {} instructions", info.name, info.verified_insns);
            assert!((1..=MOST).contains(&info.verified_insns), "{:?}: {}", info.name, info.verified_insns);
        }
    });
}
