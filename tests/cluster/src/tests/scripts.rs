//! The scripts of the cluster without its programs and without root: the commands that they would run.

use std::collections::BTreeSet;
use std::process::Command;

fn dry_run(verb: &str, layout: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster.sh");
    let output = Command::new(script)
        .args([verb, "--dry-run"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("K8S_BIN", "/missing")
        .env("LAYOUT", layout)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn after<'a>(lines: &'a [String], start: &str) -> BTreeSet<&'a str> {
    lines.iter().filter_map(|line| line.strip_prefix(start)).collect()
}

#[test]
fn down_removes_what_up_creates() {
    let (up, down) = (dry_run("up", "routes"), dry_run("down", "routes"));
    let spaces = after(&up, "ip netns add ");
    assert_eq!(spaces, after(&down, "ip netns delete "));
    assert_eq!(spaces.len(), 5, "{spaces:?}");
    let removed = after(&down, "find ").iter().filter_map(|line| line.split(' ').next()).collect::<BTreeSet<_>>();
    assert_eq!(after(&up, "mkdir -p /sys"), removed.iter().filter_map(|path| path.strip_prefix("/sys")).collect());
    for process in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl-proxy", "balancer"]
    {
        assert!(down.contains(&format!("stop {process}")), "{process}");
    }
}

#[test]
fn each_node_has_its_programs_and_paths_to_the_others() {
    let up = dry_run("up", "routes");
    for node in ["node1", "node2", "node3"] {
        for program in ["/missing/containerd", "/missing/kubelet"] {
            assert_eq!(after(&up, &format!("{node}: {program} ")).len(), 1, "{node} {program}");
        }
        assert!(up.iter().any(|line| line.starts_with(&format!("{node}: ")) && line.contains("/nodelb run --config ")));
        assert_eq!(after(&up, &format!("ip -n nodelb-cluster-{node} route replace ")).len(), 2, "{node}");
        assert_eq!(after(&up, &format!("ip -n nodelb-cluster-{node} -6 route replace ")).len(), 2, "{node}");
    }
}

#[test]
fn the_tunnels_of_a_node_know_the_others() {
    let up = dry_run("up", "vxlan");
    for (node, others) in [("node1", ["2", "3"]), ("node2", ["1", "3"]), ("node3", ["1", "2"])] {
        for other in others {
            let entry = format!("02:00:5e:04:00:0{other} dev flannel.1 dst 10.89.0.1{other}");
            assert!(
                after(&up, &format!("bridge -n nodelb-cluster-{node} fdb append ")).contains(entry.as_str()),
                "{entry}"
            );
        }
        assert!(after(&up, &format!("ip -n nodelb-cluster-{node} link add flannel.1 ")).len() == 1);
    }
}

#[test]
fn flannel_alone_makes_the_network_of_the_pods() {
    let up = dry_run("up", "flannel");
    for node in ["node1", "node2", "node3"] {
        let (flanneld, kubelet) =
            (format!("{node}: env NODE_NAME={node} /missing/flanneld "), format!("{node}: /missing/kubelet "));
        let place = |start: &str| up.iter().position(|line| line.starts_with(start));
        assert!(place(&flanneld).is_some() && place(&flanneld) < place(&kubelet), "{node}");
    }
    let network: Vec<_> = up
        .iter()
        .filter(|line| ["ip -n ", "bridge ", "nsenter "].iter().any(|start| line.starts_with(start)))
        .collect();
    assert!(network.iter().any(|line| line.contains(" nodelb-cluster-node1 ")));
    for ours in ["route replace", "neighbour", "vxlan", "fdb", " nft "] {
        assert_eq!(network.iter().find(|line| line.contains(ours)), None, "{ours}");
    }
}
