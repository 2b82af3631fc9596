use super::*;

#[test]
fn ipvs_is_in_use_if_it_has_a_virtual_server() {
    let empty = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> \
                 RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
    assert!(!has_virtual_server(empty) && !has_virtual_server(""));
    assert!(has_virtual_server(&format!("{empty}TCP  0A600001:01BB rr\n  -> C0000201:192B      Masq    1  0  0\n")));
}

#[test]
fn translating_programs_are_known_by_their_names() {
    let names = ["cil_from_netdev-eth0:[123]", "cil_from_container", "tc_shape", "cil_to_netdev"];
    let found: Vec<_> = translating(names.into_iter().map(str::to_owned)).collect();
    assert_eq!(found, ["cil_from_netdev", "cil_to_netdev"]);
}

#[test]
fn without_the_capability_rules_are_unknown() {
    let findings = find(&Machine::default(), Err(io::ErrorKind::PermissionDenied.into()));
    assert!(findings.rules_unknown.is_some());
    let findings = find(&Machine::default(), Ok(KubeProxyRules { has_table: true, has_chains: false }));
    assert!(findings.proxies.contains(&ServiceProxy::NftablesTable) && findings.rules_unknown.is_none());
    assert!(!findings.proxies.contains(&ServiceProxy::IptablesChains));
}
