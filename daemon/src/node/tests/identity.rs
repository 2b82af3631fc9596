use super::*;
use crate::config::Node;

fn of(node: Node) -> Config {
    Config { node, ..Config::default() }
}

#[test]
fn the_configuration_comes_before_the_machine() {
    let nodeport_addresses = vec![NodePortAddress::Loopback];
    let node = Node { name: "node-1".into(), zone: "zone-a".into(), nodeport_addresses: nodeport_addresses.clone() };
    let identity = Identity::new(&of(node)).unwrap();
    assert_eq!((&*identity.name, &*identity.zone), ("node-1", "zone-a"));
    let own = ["192.0.2.1".parse().unwrap()].into();
    let facts = identity.facts(&Addresses { own, ..Addresses::default() });
    assert_eq!((&*facts.name, facts.addresses.len(), facts.nodeport_addresses), ("node-1", 1, nodeport_addresses));
}

#[test]
fn a_name_that_the_configuration_leaves_open_is_found() {
    let identity = Identity::new(&Config::default()).unwrap();
    assert!(!identity.name.is_empty());
    assert_eq!(*identity.name, identity.name.to_lowercase());
    assert_eq!(identity.nodeport_addresses, [NodePortAddress::Primary]);
}

mod written {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As kube-proxy uses `--hostname-override`: trimmed and in lower case.
        #[test]
        fn a_name_counts_in_whatever_case_it_is_written(
            name in "[a-z0-9]([a-z0-9.-]{0,12}[a-z0-9])?",
            upper in proptest::collection::vec(any::<bool>(), 14),
            around in prop::sample::select(&[("", ""), (" ", ""), ("", " "), ("\t", "\n"), ("  ", "\r\n")][..]),
        ) {
            let shifted: String = name.chars().zip(&upper).map(|(c, upper)| if *upper { c.to_ascii_uppercase() } else { c }).collect();
            let text = format!("[node]\nname = {:?}\n", format!("{}{shifted}{}", around.0, around.1));
            let config = Config::parse(&text).unwrap();
            let identity = Identity::new(&config).unwrap();
            prop_assert_eq!(&*identity.name, &*name);
            prop_assert!(!identity.is_host_name);
        }
    }

    #[test]
    fn white_space_alone_is_no_name() {
        let node = Node { name: "  ".into(), ..Node::default() };
        assert_eq!(Identity::new(&of(node)).unwrap(), Identity::new(&Config::default()).unwrap());
    }
}
