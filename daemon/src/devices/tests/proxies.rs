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
fn a_failed_search_keeps_what_was_found_before() {
    let rules = |has_table| Ok(ForeignRules { has_table, ..ForeignRules::default() });
    let refused = || find(&Machine::default(), Err(io::ErrorKind::PermissionDenied.into()));
    let first = refused().after(&Findings::default());
    assert!(!first.is_complete && first.error.unwrap().contains("rules of kube-proxy"));

    let found = find(&Machine::default(), rules(true)).after(&Findings::default());
    assert!(found.is_complete && found.error.is_none());
    assert!(found.proxies.contains(&ServiceProxy::NftablesTable));
    assert!(!found.proxies.contains(&ServiceProxy::IptablesChains));
    let later = refused().after(&found);
    assert!(later.is_complete && later.error.is_some());
    assert_eq!(later.proxies, found.proxies);
    let gone = find(&Machine::default(), rules(false)).after(&later);
    assert!(!gone.proxies.contains(&ServiceProxy::NftablesTable), "{gone:?}");
}
