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
