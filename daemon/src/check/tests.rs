use super::*;

/// Checks this `[kubernetes]` section beside an empty services directory.
fn checked(kubernetes: &str) -> Result<String, Failure> {
    checked_as(kubernetes, false)
}

fn checked_as(kubernetes: &str, keys: bool) -> Result<String, Failure> {
    let scratch = tempfile::tempdir().unwrap();
    let (services, config) = (scratch.path().join("services.d"), scratch.path().join("nodelb.toml"));
    std::fs::create_dir(&services).unwrap();
    std::fs::write(scratch.path().join("kubeconfig"), "apiVersion: v1\nkind: Config\n").unwrap();
    let kubernetes = kubernetes.replace("SCRATCH", scratch.path().to_str().unwrap());
    let text = format!("[files]\ndirectory = \"{}\"\n[kubernetes]\n{kubernetes}\n", services.display());
    std::fs::write(&config, text).unwrap();
    let mut told = Vec::new();
    check(&CheckOptions { config: Some(config), keys }, &mut told)?;
    Ok(String::from_utf8(told).unwrap())
}

#[test]
fn credentials_that_are_of_no_use_are_told() {
    assert!(checked("").unwrap().contains("are good"));
    let failure = checked("kubeconfig = \"SCRATCH/kubeconfig\"").unwrap_err();
    assert_eq!(failure.code, Code::Config);
    let told = failure.to_string();
    assert!(told.contains("/kubeconfig: current-context is not set; set it to the context nodelb is to use"), "{told}");
    let told = checked("kubeconfig = \"SCRATCH/missing\"").unwrap_err().to_string();
    assert!(told.contains("/missing"), "{told}");
}

#[test]
fn keys_alone_are_good_or_not_whatever_they_name() {
    assert!(checked_as("kubeconfig = \"SCRATCH/missing\"", true).unwrap().contains("was not looked at"));
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
    let told = notices("[kubernetes]\nkubeconfig = \"/root/.kube/config\"\n[state]\ndirectory = \"/home/state\"");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("note: kubernetes.kubeconfig: ") && told[0].contains("/root;"), "{told:?}");
    assert!(told[1].starts_with("note: state.directory: ") && told[1].contains("/home;"), "{told:?}");
    let told = notices("[state]\ndirectory = \"/srv/nodelb\"");
    assert!(told.len() == 1 && told[0].contains("ReadWritePaths=/srv/nodelb"), "{told:?}");
    assert_eq!(notices("[state]\ndirectory = \"/rooted\"").len(), 1, "a name is compared whole");
}
