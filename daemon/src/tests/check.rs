use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

use super::*;

#[path = "check/access.rs"]
mod access;

/// Checks this `[kubernetes]` section with an empty services directory.
fn checked(kubernetes: &str) -> Result<String, Failure> {
    checked_as(kubernetes, false)
}

fn checked_as(kubernetes: &str, keys: bool) -> Result<String, Failure> {
    let scratch = tempfile::tempdir().unwrap();
    let (services, config) = (scratch.path().join("services.d"), scratch.path().join("nodelb.toml"));
    fs::create_dir(&services).unwrap();
    fs::write(scratch.path().join("kubeconfig"), "apiVersion: v1\nkind: Config\n").unwrap();
    let kubernetes = kubernetes.replace("SCRATCH", scratch.path().to_str().unwrap());
    let text = format!("[files]\ndirectory = \"{}\"\n[kubernetes]\n{kubernetes}\n", services.display());
    fs::write(&config, text).unwrap();
    let mut reported = Vec::new();
    check(&CheckOptions { config: Some(config), keys }, &mut reported)?;
    Ok(String::from_utf8(reported).unwrap())
}

#[test]
fn unusable_credentials_are_reported() {
    assert!(checked("").unwrap().contains("Every service file in"));
    let failure = checked("kubeconfig = \"SCRATCH/kubeconfig\"").unwrap_err();
    assert_eq!(failure.code, Code::Config);
    let reported = failure.to_string();
    assert!(
        reported.contains("/kubeconfig: current-context is not set; set it to the context nodelb is to use"),
        "{reported}"
    );
    let reported = checked("kubeconfig = \"SCRATCH/missing\"").unwrap_err().to_string();
    assert!(reported.contains("/missing"), "{reported}");
}

/// The example of docs/install.md has such backends, and the connection of a pod to them is refused.
#[test]
fn loopback_backends_are_good_for_the_nodes_own_processes_only() {
    let scratch = tempfile::tempdir().unwrap();
    let (services, config) = (scratch.path().join("services.d"), scratch.path().join("nodelb.toml"));
    fs::create_dir(&services).unwrap();
    fs::write(&config, format!("[files]\ndirectory = \"{}\"\n", services.display())).unwrap();
    let notes = |backends: &str| {
        let entry =
            format!("[[service]]\nname = \"shop/web\"\nfrontends = [\"10.96.7.7:80\"]\nbackends = [{backends}]\n");
        fs::write(services.join("web.toml"), entry).unwrap();
        let mut reported = Vec::new();
        check(&CheckOptions { config: Some(config.clone()), keys: false }, &mut reported).unwrap();
        let reported = String::from_utf8(reported).unwrap();
        reported.lines().filter(|line| line.contains("loopback")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(notes("\"192.0.2.1:80\""), [""; 0]);
    let notes = notes("\"127.0.0.1:8081\", \"127.0.0.1:8082\"");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("web.toml: service shop/web: 127.0.0.1:8081 and 1 more are loopback addresses"),
        "{notes:?}"
    );
}

#[test]
fn an_address_that_nodelb_never_serves_fails() {
    let scratch = tempfile::tempdir().unwrap();
    let (services, config) = (scratch.path().join("services.d"), scratch.path().join("nodelb.toml"));
    fs::create_dir(&services).unwrap();
    let entry =
        "[[service]]\nname = \"shop/web\"\nfrontends = [\"127.0.0.1:80\", \"198.51.100.1:80\"]\nbackends = []\n";
    fs::write(services.join("web.toml"), entry).unwrap();
    let mut reported = Vec::new();
    fs::write(&config, format!("[files]\ndirectory = \"{}\"\n", services.display())).unwrap();
    let failure = check(&CheckOptions { config: Some(config), keys: false }, &mut reported).unwrap_err();
    assert_eq!(failure.code, Code::Data);
    assert!(failure.to_string().contains("127.0.0.1:80/TCP will not be served: loopback address"), "{failure}");
    let reported = String::from_utf8(reported).unwrap();
    assert!(reported.contains("service shop/web has no backends: connections to it are refused"), "{reported}");
}

#[test]
fn the_nodeports_that_no_service_gets_are_noted() {
    let notices = |text: &str| snat_notices(&Config::parse(text).unwrap()).join("\n");
    let range = "[datapath]\nnodeport-range = \"1-65535\"\n[packets]\n";
    let expected = "note: NodePorts from 20000 to 29999 are refused, because packets.snat-ports contains these ports";
    assert!(notices(&format!("{range}snat-ports = \"20000-29999\"")).contains(expected));
    assert_eq!(notices(&format!("{range}snat-ports = \"20000-29999\"\nmode = \"off\"")), "");
    let unset = notices(range);
    assert!(unset.contains("set packets.snat-ports to a range") && unset.contains("will not be translated"), "{unset}");
    assert!(!notices("[packets]\nsnat-ports = \"20000-29999\"").contains("refused"));
}

#[test]
fn keys_alone_are_good_or_not_whatever_they_name() {
    assert!(checked_as("kubeconfig = \"SCRATCH/missing\"", true).unwrap().contains("were not checked"));
    let failure = checked_as("kubeconfig = \"SCRATCH/missing\"\nqueue = 7", true).unwrap_err();
    assert_eq!(failure.code, Code::Config);
    assert!(failure.to_string().contains("kubernetes.queue"), "{failure}");
    let failure = checked_as("kubeconfig = 7", true).unwrap_err();
    assert!(failure.to_string().contains("kubernetes.kubeconfig"), "{failure}");
}

#[test]
fn what_the_unit_cannot_open_is_noted() {
    let notices = |text: &str| unit_notices(&Config::parse(text).unwrap());
    assert_eq!(notices(""), [""; 0]);
    assert_eq!(notices("[kubernetes]\nkubeconfig = \"credential:nodelb.kubeconfig\""), [""; 0]);
    let reported = notices("[kubernetes]\nkubeconfig = \"/root/.kube/config\"\n[state]\ndirectory = \"/home/state\"");
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported[0].starts_with("note: kubernetes.kubeconfig: ") && reported[0].contains("/root of the host"),
        "{reported:?}"
    );
    assert!(
        reported[1].starts_with("note: state.directory: ") && reported[1].contains("/home of the host"),
        "{reported:?}"
    );
    let reported = notices("[state]\ndirectory = \"/srv/nodelb\"");
    assert!(reported.len() == 1 && reported[0].contains("ReadWritePaths=/srv/nodelb"), "{reported:?}");
    assert_eq!(notices("[state]\ndirectory = \"/rooted\"").len(), 1, "a name is compared whole");
}

#[test]
fn files_closed_to_the_unit_are_reported() {
    // Only root can change the owner of a file; `access` compares the modes themselves with the kernel's decision.
    if !geteuid().is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    fs::create_dir(path("services.d")).unwrap();
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
                      clusters: [{name: c, cluster: {server: 'https://192.0.2.1', certificate-authority: ca.crt}}]\n\
                      users: [{name: u, user: {client-certificate: u.crt, client-key: u.key}}]\n";
    fs::write(path("kubeconfig"), kubeconfig).unwrap();
    let (authority, certificate, key) = certificates();
    for (name, content) in [("ca.crt", authority), ("u.crt", certificate), ("u.key", key)] {
        fs::write(path(name), content).unwrap();
    }
    fs::write(path("services.d/web.toml"), "# none\n").unwrap();
    let config =
        format!("[files]\ndirectory = {:?}\n[kubernetes]\nkubeconfig = {:?}\n", path("services.d"), path("kubeconfig"));
    fs::write(path("nodelb.toml"), config).unwrap();
    let checked = || check(&CheckOptions { config: Some(path("nodelb.toml")), keys: false }, &mut Vec::new());
    assert!(checked().is_ok(), "{:?}", checked());
    for (name, code) in [
        ("nodelb.toml", Code::Config),
        ("kubeconfig", Code::Config),
        ("ca.crt", Code::Config),
        ("u.key", Code::Config),
        ("services.d/web.toml", Code::Data),
        ("services.d", Code::Data),
    ] {
        let mode = |mode| {
            fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
        };
        std::os::unix::fs::chown(path(name), Some(1000), Some(1000)).unwrap();
        mode(0o700);
        let failure = checked().unwrap_err();
        assert_eq!(failure.code, code, "{name}: {failure}");
        let reported = failure.to_string();
        assert!(
            reported.contains("nodelb.service may not") && reported.contains("owner 1000, group 1000, mode 0700"),
            "{reported}"
        );
        assert!(reported.contains(path(name).to_str().unwrap()), "{reported}");
        mode(0o755);
        assert!(checked().is_ok(), "{name}: {:?}", checked());
    }
}

/// A certificate authority, and a client certificate of it with its key, in PEM.
fn certificates() -> (String, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::default();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    (authority.pem(), params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
}

/// A kubeconfig that was made inside a pod.
#[test]
fn a_kubeconfig_with_a_service_address_is_refused_unless_other_apiservers_are_configured() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("kubeconfig");
    let (authority, ..) = certificates();
    fs::write(scratch.path().join("ca.pem"), authority).unwrap();
    let kubeconfig = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                      clusters: [{name: k, cluster: {server: \"https://10.96.0.1:443\", certificate-authority: ca.pem}}]\n\
                      users: [{name: u, user: {token: secret}}]\n";
    fs::write(&path, kubeconfig).unwrap();
    let keys = |more: &str| format!("kubeconfig = \"{}\"\nservice-cidrs = [\"10.96.0.0/16\"]\n{more}", path.display());
    let refused = checked(&keys("")).unwrap_err().to_string();
    let expected = "its server 10.96.0.1:443 is a service address (it lies in 10.96.0.0/16), and nodelb never translates its own connections";
    assert!(refused.contains(expected), "{refused}");
    let noted = checked(&keys("apiserver = [{ address = \"192.0.2.1:6443\" }]\n")).unwrap();
    assert!(noted.contains(&format!("note: {}: {expected}", path.display())), "{noted}");
}
