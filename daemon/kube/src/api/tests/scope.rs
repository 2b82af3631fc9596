use super::*;

fn selection(namespaces: &[&str], services: &[&str]) -> Selection {
    Selection {
        labels: "team=shop".into(),
        namespaces: namespaces.iter().map(|name| (*name).into()).collect(),
        services: services.iter().map(|name| name.parse().unwrap()).collect(),
    }
}

/// The scopes, with the names and labels of each.
fn shown(selection: &Selection) -> Vec<String> {
    let text = |scope: &Scope| match (&scope.names[..], &*scope.labels) {
        ([], "") => scope.to_string(),
        ([], labels) => format!("{scope} {labels}"),
        (names, _) => format!("{scope} [{}]", names.join(" ")),
    };
    selection.scopes().iter().map(text).collect()
}

#[test]
fn scopes_of_the_cluster_of_namespaces_and_of_services() {
    assert_eq!(Selection::default().scopes(), Kind::SERVED.map(Scope::all));
    assert_eq!(shown(&selection(&[], &[])), ["services team=shop", "endpointslices"]);
    let namespaces =
        ["services/shop team=shop", "endpointslices/shop", "services/default team=shop", "endpointslices/default"];
    assert_eq!(shown(&selection(&["shop", "default"], &[])), namespaces);
    assert_eq!(
        shown(&selection(&["shop"], &[])),
        ["services/shop team=shop", "endpointslices/shop", "endpointslices/default [kubernetes]"]
    );
    assert_eq!(
        shown(&selection(&[], &["default/kubernetes"])),
        ["services/default/kubernetes [kubernetes]", "endpointslices/default [kubernetes]"]
    );
    let services = [
        "services/default/dns [dns]",
        "endpointslices/default [dns kubernetes]",
        "services/shop/web [web]",
        "services/shop/api [api]",
        "endpointslices/shop [api web]",
    ];
    assert_eq!(shown(&selection(&[], &["shop/web", "default/dns", "shop/api"])), services);
}

#[test]
fn every_service_is_in_at_most_one_scope_of_a_kind() {
    let names = ["default/kubernetes", "default/dns", "shop/web", "shop/api", "other/web"];
    for selection in [
        selection(&[], &[]),
        selection(&["shop"], &[]),
        selection(&["default", "shop"], &[]),
        selection(&[], &["shop/web", "shop/api"]),
        selection(&[], &["default/dns"]),
    ] {
        let scopes = selection.scopes();
        for service in names.map(|name| name.parse::<ServiceName>().unwrap()) {
            let of = |kind| scopes.iter().filter(|scope| scope.kind == kind && scope.covers(&service)).count();
            assert_eq!(of(Kind::Service) == 1, selection.covers(&service), "{selection:?} {service}");
            assert!(of(Kind::Service) <= 1 && of(Kind::EndpointSlice) <= 1, "{selection:?} {service}");
            assert_eq!(selection.scopes_of(&service).len(), 2 * of(Kind::Service), "{selection:?} {service}");
            // nodelb learns the addresses of the apiservers whatever it serves.
            assert!(!service.is_default_kubernetes() || of(Kind::EndpointSlice) == 1, "{selection:?}");
        }
    }
}
