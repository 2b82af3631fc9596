use super::*;

fn server(address: &str, name: Option<&str>) -> Server {
    Server { address: address.parse().unwrap(), tls_server_name: name.map(Arc::from) }
}

fn reported(servers: &[(Server, AddressSource)]) -> Vec<String> {
    servers
        .iter()
        .map(|(server, address_source)| {
            format!("{} {address_source} {}", server.address, server.tls_server_name.as_deref().unwrap_or("-"))
        })
        .collect()
}

#[test]
fn what_the_daemon_uses_comes_first_and_what_it_balances_last() {
    let known = || {
        vec![
            (server("192.0.2.1:443", Some("api.example.com")), AddressSource::Configured),
            (server("192.0.2.2:6443", None), AddressSource::Kubeconfig),
            (server("192.0.2.3:6443", Some("kubernetes")), AddressSource::Remembered),
            (server("192.0.2.2:6443", Some("other")), AddressSource::Remembered),
        ]
    };
    assert_eq!(
        reported(&in_order(known(), &AddressHints::default())),
        [
            "192.0.2.1:443 configured api.example.com",
            "192.0.2.2:6443 from the kubeconfig -",
            "192.0.2.3:6443 remembered kubernetes",
        ]
    );
    let direct = ["192.0.2.3:6443", "192.0.2.4:6443"].map(|address| address.parse().unwrap()).to_vec();
    let hints = AddressHints { direct, balanced: BTreeSet::from(["192.0.2.1:443".parse().unwrap()]) };
    assert_eq!(
        reported(&in_order(known(), &hints)),
        [
            "192.0.2.3:6443 reported by the daemon kubernetes",
            "192.0.2.4:6443 reported by the daemon api.example.com",
            "192.0.2.2:6443 from the kubeconfig -",
            "192.0.2.1:443 configured api.example.com",
        ]
    );
}

#[test]
fn the_tried_addresses_are_reported() {
    let tried = vec![("192.0.2.1:443".parse().unwrap(), "refused".to_owned())];
    assert_eq!(ConnectError::Unreachable(tried).to_string(), "no apiserver answers (192.0.2.1:443: refused)");
    assert_eq!(ConnectError::Unreachable(Vec::new()).to_string(), "no apiserver address is known");
}
