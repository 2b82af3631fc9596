use super::{admin, drained_service, matching};

#[test]
fn names_complete_with_and_without_their_namespace() {
    let names = ["kube-system/kube-dns", "shop/api", "shop/web"].map(String::from);
    assert_eq!(matching("sh", &names), ["shop/api", "shop/web"]);
    assert_eq!(matching("shop/w", &names), ["shop/web"]);
    assert_eq!(matching("we", &names), ["web"]);
    assert_eq!(matching("kube", &names), ["kube-system/kube-dns"]);
    assert!(matching("shop/x", &names).is_empty());
    assert_eq!(matching("", &names).len(), 3);
}

#[test]
fn the_address_of_the_daemon_is_that_of_the_command_line() {
    let of = |line: &str| admin(line.split(' ').map(Into::into)).map(|at| at.to_string());
    assert_eq!(of("nodelb -- nodelb --admin /run/x.sock services"), Some("/run/x.sock".into()));
    assert_eq!(of("nodelb -- nodelb services --admin=127.0.0.1:9 "), Some("127.0.0.1:9".into()));
    assert_eq!(of("nodelb -- nodelb services"), None);
}

#[test]
fn backends_complete_for_the_service_before_them() {
    let of = |line: &str| drained_service(line.split(' ').map(Into::into));
    assert_eq!(of("nodelb -- nodelb drain shop/web 10.1"), Some("shop/web".into()));
    assert_eq!(of("nodelb -- nodelb undrain --color=never web "), Some("web".into()));
    assert_eq!(of("nodelb -- nodelb services shop/web"), None);
}
