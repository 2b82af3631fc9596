use super::*;

fn server(address: &str, name: Option<&str>) -> Server {
    Server { address: address.parse().unwrap(), tls_server_name: name.map(Arc::from) }
}

fn told(servers: &[(Server, Whence)]) -> Vec<String> {
    servers
        .iter()
        .map(|(server, whence)| {
            format!("{} {whence} {}", server.address, server.tls_server_name.as_deref().unwrap_or("-"))
        })
        .collect()
}

#[test]
fn what_the_daemon_uses_comes_first_and_what_it_balances_last() {
    let known = || {
        vec![
            (server("192.0.2.1:443", Some("api.example.com")), Whence::Configured),
            (server("192.0.2.2:6443", None), Whence::Kubeconfig),
            (server("192.0.2.3:6443", Some("kubernetes")), Whence::Remembered),
            (server("192.0.2.2:6443", Some("other")), Whence::Remembered),
        ]
    };
    assert_eq!(
        told(&in_order(known(), &Tips::default())),
        [
            "192.0.2.1:443 configured api.example.com",
            "192.0.2.2:6443 from the kubeconfig -",
            "192.0.2.3:6443 remembered kubernetes",
        ]
    );
    let direct = ["192.0.2.3:6443", "192.0.2.4:6443"].map(|address| address.parse().unwrap()).to_vec();
    let tips = Tips { direct, balanced: BTreeSet::from(["192.0.2.1:443".parse().unwrap()]) };
    assert_eq!(
        told(&in_order(known(), &tips)),
        [
            "192.0.2.3:6443 told by the daemon kubernetes",
            "192.0.2.4:6443 told by the daemon api.example.com",
            "192.0.2.2:6443 from the kubeconfig -",
            "192.0.2.1:443 configured api.example.com",
        ]
    );
}

#[test]
fn who_was_tried_is_told() {
    let tried = vec![("192.0.2.1:443".parse().unwrap(), "refused".to_owned())];
    assert_eq!(Nobody::Silent(tried).to_string(), "no apiserver answers (192.0.2.1:443: refused)");
    assert_eq!(Nobody::Silent(Vec::new()).to_string(), "no apiserver address is known");
}
