use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::apiserver::credentials::login::tests::Authority;

/// A directory with the files of a cluster.
struct Files {
    directory: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Self { directory: tempfile::tempdir().unwrap(), authority: Authority::new() };
        files.write("ca.crt", &files.authority.pem());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the file atomically, as recommended for such files.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(".new"), text).unwrap();
        fs::rename(self.path(".new"), self.path(name)).unwrap();
    }

    fn kubeconfig(&self, user: &str) -> Credentials {
        self.write(
            "kubeconfig",
            &format!(
                "{{current-context: a, contexts: [{{name: a, context: {{cluster: b, user: c}}}}],\n\
                 clusters: [{{name: b, cluster: {{server: 'https://192.0.2.1:6443', certificate-authority: ca.crt}}}}],\n\
                 users: [{{name: c, user: {user}}}]}}"
            ),
        );
        let settings = Settings { kubeconfig: Some(self.path("kubeconfig")), ..Settings::default() };
        Credentials::new(&settings, quick()).unwrap()
    }

    fn token_file(&self) -> Credentials {
        let (token_file, ca_file) = (Some(self.path("token")), Some(self.path("ca.crt")));
        Credentials::new(&Settings { token_file, ca_file, ..Settings::default() }, quick()).unwrap()
    }

    /// A plugin that prints a token with the number of the run, and the fields in `expires`.
    fn plugin(&self, expires: &str) -> Credentials {
        let script = format!(
            "echo >> {runs}\n\
             echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{{\
             \"token\":\"run'$(wc -l < {runs})'\"{expires}}}}}'\n",
            runs = self.path("runs").display()
        );
        fs::write(self.path("login"), script).unwrap();
        // The plugin is a shell that reads the script. The script is not executed directly: a process forked in the
        // meantime would keep it open for writing (ETXTBSY).
        let login = self.path("login");
        let exec =
            format!("apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, args: [{}]", login.display());
        self.kubeconfig(&format!("{{exec: {{{exec}}}}}"))
    }
}

fn quick() -> CredentialTimeouts {
    CredentialTimeouts { plugin_pause: Duration::ZERO, ..CredentialTimeouts::default() }
}

fn token(login: &Login) -> &str {
    login.authorization.as_ref().unwrap().to_str().unwrap()
}

#[tokio::test]
async fn a_rotated_token_is_picked_up_and_a_broken_one_is_not() {
    let files = Files::new();
    let credentials = files.token_file();
    let error = credentials.login().await.unwrap_err().to_string();
    assert!(error.contains("token cannot be read: No such file"), "{error}");
    files.write("token", "one\n");
    let one = credentials.login().await.unwrap();
    assert_eq!(token(&one), "Bearer one");
    assert!(Arc::ptr_eq(&one, &credentials.login().await.unwrap()), "nothing has changed");
    files.write("token", "one");
    let same = credentials.login().await.unwrap();
    assert_eq!(token(&same), "Bearer one");
    files.write("token", "two");
    let two = credentials.login().await.unwrap();
    assert_eq!(token(&two), "Bearer two");
    assert!(Arc::ptr_eq(&one.tls, &two.tls), "the TLS sessions go on");
    files.write("token", "");
    assert!(Arc::ptr_eq(&two, &credentials.login().await.unwrap()), "half written");
    fs::remove_file(files.path("token")).unwrap();
    assert!(Arc::ptr_eq(&two, &credentials.login().await.unwrap()), "gone");
    files.write("token", "three");
    assert_eq!(token(&credentials.login().await.unwrap()), "Bearer three");
    assert_eq!(credentials.server(), None);
}

#[tokio::test]
async fn a_certificate_rotated_behind_a_symbolic_link_is_picked_up() {
    let files = Files::new();
    let rotate = |name: &str| {
        let (certificate, key) = files.authority.client(name, "nodes");
        files.write(&format!("{name}.pem"), &format!("{certificate}{key}"));
        symlink(files.path(&format!("{name}.pem")), files.path("link")).unwrap();
        fs::rename(files.path("link"), files.path("current.pem")).unwrap();
    };
    rotate("first");
    let credentials = files.kubeconfig("{client-certificate: current.pem, client-key: current.pem}");
    let first = credentials.login().await.unwrap();
    assert!(first.identity.contains("CN=first"), "{}", first.identity);
    assert_eq!(credentials.server().unwrap().address.to_string(), "192.0.2.1:6443");
    rotate("second");
    let second = credentials.login().await.unwrap();
    assert!(second.identity.contains("CN=second") && !Arc::ptr_eq(&first.tls, &second.tls));
    assert_eq!(first.authority, second.authority);
}

#[tokio::test]
async fn a_key_of_another_certificate_waits_for_its_own() {
    let files = Files::new();
    let (certificate, key) = files.authority.client("first", "nodes");
    files.write("crt", &certificate);
    files.write("key", &key);
    let credentials = files.kubeconfig("{client-certificate: crt, client-key: key}");
    let first = credentials.login().await.unwrap();
    let (certificate, key) = files.authority.client("second", "nodes");
    files.write("crt", &certificate);
    for _ in 0..2 {
        assert!(Arc::ptr_eq(&first, &credentials.login().await.unwrap()));
    }
    files.write("key", &key);
    assert!(credentials.login().await.unwrap().identity.contains("CN=second"));
}

#[tokio::test]
async fn a_broken_kubeconfig_changes_nothing_until_it_is_whole() {
    let files = Files::new();
    let credentials = files.kubeconfig("{token: one}");
    let one = credentials.login().await.unwrap();
    let text = fs::read_to_string(files.path("kubeconfig")).unwrap();
    files.write("kubeconfig", &text[..text.len() / 2]);
    assert!(Arc::ptr_eq(&one, &credentials.login().await.unwrap()));
    assert_eq!(credentials.server().unwrap().address.to_string(), "192.0.2.1:6443");
    files.write("kubeconfig", &text.replace("token: one", "token: two").replace("192.0.2.1", "192.0.2.2"));
    assert_eq!(token(&credentials.login().await.unwrap()), "Bearer two");
    assert_eq!(credentials.server().unwrap().address.to_string(), "192.0.2.2:6443");
}

#[tokio::test]
async fn a_rejected_login_is_read_again() {
    let files = Files::new();
    files.write("token", "one");
    let credentials = files.token_file();
    let one = credentials.login().await.unwrap();
    credentials.reject(&one);
    assert!(Arc::ptr_eq(&one, &credentials.login().await.unwrap()), "the file says the same");
}

#[tokio::test]
async fn a_plugin_runs_once_until_it_is_needed_again() {
    let files = Files::new();
    let credentials = files.plugin("");
    let first = credentials.login().await.unwrap();
    assert_eq!(token(&first), "Bearer run1");
    assert!(first.identity.starts_with("the token (exec plugin /"), "{}", first.identity);
    assert!(Arc::ptr_eq(&first, &credentials.login().await.unwrap()));
    credentials.reject(&first);
    let second = credentials.login().await.unwrap();
    assert_eq!(token(&second), "Bearer run2");
    credentials.reject(&first);
    assert!(Arc::ptr_eq(&second, &credentials.login().await.unwrap()), "the first is gone already");
}

#[tokio::test]
async fn a_plugin_runs_again_before_its_credentials_end() {
    let files = Files::new();
    let credentials = files.plugin(r#","expirationTimestamp":"2001-01-01T00:00:00Z""#);
    assert_eq!(token(&credentials.login().await.unwrap()), "Bearer run1");
    assert_eq!(token(&credentials.login().await.unwrap()), "Bearer run2", "ended: waited for");
}

#[tokio::test]
async fn valid_credentials_do_not_wait_for_a_plugin() {
    let files = Files::new();
    let credentials = files.plugin("");
    let first = credentials.login().await.unwrap();
    // From now on the plugin hangs. The rewritten kubeconfig triggers another run.
    fs::write(files.path("login"), "exec sleep 100\n").unwrap();
    let text = fs::read_to_string(files.path("kubeconfig")).unwrap();
    files.write("kubeconfig", &text.replace("login]", "login, again]"));
    let again = tokio::time::timeout(Duration::from_secs(60), credentials.login()).await.unwrap().unwrap();
    assert!(Arc::ptr_eq(&first, &again));
}

#[tokio::test]
async fn a_plugin_that_fails_does_not_take_away_what_there_is() {
    let files = Files::new();
    let credentials = files.plugin(r#","expirationTimestamp":"2001-01-01T00:00:00Z""#);
    let first = credentials.login().await.unwrap();
    fs::remove_file(files.path("login")).unwrap();
    assert!(Arc::ptr_eq(&first, &credentials.login().await.unwrap()));
    let other =
        files.kubeconfig("{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./none, installHint: ask}}");
    let error = other.login().await.unwrap_err().to_string();
    assert!(error.contains("cannot be started") && error.contains("ask"), "{error}");
}

#[test]
fn without_credentials_nothing_begins() {
    let error = Credentials::new(&Settings::default(), CredentialTimeouts::default()).err().unwrap().to_string();
    assert!(error.contains("set kubeconfig, or ca-file"), "{error}");
    let settings = Settings { kubeconfig: Some(Path::new("/x").into()), ..Settings::default() };
    assert!(Credentials::new(&settings, CredentialTimeouts::default()).is_ok());
}
