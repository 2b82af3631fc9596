//! What loading costs: each start of the daemon waits for the kernel's verifier.

use libbpf_rs::query::ProgInfoIter;
use nodelb_datapath::packets::{PacketOptions, Sweep, XdpMode, XdpProgram};

use super::{options, with_node};

/// Instructions that the verifier looks at in one program: 21,000 in `packet_in` on 6.18.
const MOST: u32 = 100_000;

/// The programs of all tests that run at the same time have the same names.
#[test]
fn the_verifier_is_soon_done() {
    with_node("programs::verifier::the_verifier_is_soon_done", |node| {
        let _sweep = Sweep::load(node.programs.maps()).unwrap_or_else(|error| panic!("{error}"));
        let early = [XdpMode::Auto, XdpMode::Generic].map(|mode| {
            let options = PacketOptions { xdp: Some(mode), ..options(10_000..=10_999, None) };
            XdpProgram::load(&options, node.programs.maps()).unwrap_or_else(|error| panic!("{error}"))
        });
        // The kernel cuts names after 15 bytes.
        let names = ["packet_in", "packet_out", "pod_in", "sweep_connectio", "sweep_half_open", "xdp_in"];
        let is_ours = |name: &str| names.contains(&name);
        let ours: Vec<_> = ProgInfoIter::default().filter(|info| is_ours(&info.name.to_string_lossy())).collect();
        assert!(ours.len() >= 7, "three programs at devices, two for XDP, and two of the sweep");
        drop(early);
        for info in ours {
            #[expect(clippy::print_stdout, reason = "the figure of this kernel, which the VM tests keep")]
            {
                println!("{}: {} verified instructions", info.name.to_string_lossy(), info.verified_insns);
            }
            assert!((1..=MOST).contains(&info.verified_insns), "{:?}: {}", info.name, info.verified_insns);
        }
    });
}
