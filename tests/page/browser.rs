//! A browser, a daemon with maps in memory, and the files that it serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder};
use hyper::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use url::{ParseError, Url};

use crate::sandbox;

const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");
/// The address of the page in the sandbox.
pub(crate) const PAGE: &str = "http://localhost:9890/";
const DRIVER_PORT: &str = "9515";
/// Time limit for what has no limit of its own, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The arguments of Chromium: no sandbox of its own as root, and no request to other machines.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,950",
];

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon with its own directories.
pub(crate) struct Daemon {
    directory: TempDir,
    process: Option<Process>,
}

impl Daemon {
    /// Starts a daemon that serves this file.
    pub(crate) fn start(services: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        fs::create_dir(directory.path().join("services.d")).expect("a directory");
        let mut daemon = Self { directory, process: None };
        daemon.write("services.toml", services);
        let at = |name: &str| daemon.directory.path().join(name);
        let config = format!(
            "[files]\ndirectory = {:?}\n[state]\ndirectory = {:?}\n[admin]\nsocket = {:?}\n",
            at("services.d"),
            at("state"),
            at("socket")
        );
        fs::write(at("nodelb.toml"), config).expect("a file");
        daemon.restart();
        daemon
    }

    /// Replaces a file of services atomically.
    pub(crate) fn write(&self, name: &str, services: &str) {
        let folder = self.directory.path();
        fs::write(folder.join("new"), services).expect("a file");
        fs::rename(folder.join("new"), folder.join("services.d").join(name)).expect("a file");
    }

    /// Ends the daemon like `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the daemon.
    pub(crate) fn restart(&mut self) {
        let mut command = Command::new(NODELB);
        command.args(["run", "--datapath", "memory", "--config"]).arg(self.directory.path().join("nodelb.toml"));
        let log = fs::File::create(self.directory.path().join("log")).expect("a file");
        command.env_remove("JOURNAL_STREAM").env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(log);
        self.process = Some(Process(command.spawn().expect("the daemon")));
    }
}

#[derive(Debug)]
struct DeveloperCommand(String);

impl WebDriverCompatibleCommand for DeveloperCommand {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.0.clone()))
    }
}

/// A browser with one tab.
pub(crate) struct Browser {
    pub(crate) client: Client,
    _driver: Process,
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser.
    pub(crate) async fn start() -> Self {
        let profile = TempDir::new().expect("a directory");
        let mut command = sandbox::program("chromedriver");
        command.arg(format!("--port={DRIVER_PORT}")).env("HOME", profile.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = Process(command.spawn().expect("chromedriver starts"));
        let mut arguments: Vec<String> = ARGUMENTS.map(String::from).into();
        arguments.push(format!("--user-data-dir={}", profile.path().join("profile").display()));
        let Value::Object(capabilities) = json!({
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        }) else {
            unreachable!("it is an object")
        };
        let start = Instant::now();
        let client = loop {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities.clone());
            match builder.connect(&format!("http://localhost:{DRIVER_PORT}")).await {
                Ok(client) => break client,
                Err(error) => assert!(start.elapsed() < TIMEOUT, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        Self { client, _driver: driver, _profile: profile }
    }

    /// Opens the page with this fragment, as soon as the daemon responds.
    pub(crate) async fn open(&self, fragment: &str) {
        let start = Instant::now();
        while let Err(error) = self.client.goto(&format!("{PAGE}{fragment}")).await {
            assert!(start.elapsed() < TIMEOUT, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Sends a command of the protocol of Chromium's developer tools.
    async fn command(&self, name: &str, parameters: Value) {
        let command = DeveloperCommand(json!({ "cmd": name, "params": parameters }).to_string());
        self.client.issue_cmd(command).await.expect("the browser obeys");
    }

    /// Sets the size of the page. No window of Chromium is narrower than 500 pixels, and a phone is.
    pub(crate) async fn screen(&self, width: u32, height: u32) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", screen).await;
    }

    /// Makes the browser prefer `light` or `dark`.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", features).await;
    }

    /// Runs a script in each page before its own scripts.
    pub(crate) async fn begin_with(&self, script: &str) {
        self.command("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script })).await;
    }

    /// The result of an expression in the page.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        self.client.execute(&format!("return {expression};"), Vec::new()).await.expect("a value")
    }

    /// Waits until the expression is true. Returns the time it took.
    pub(crate) async fn until(&self, expression: &str) -> Duration {
        let start = Instant::now();
        while self.value(&format!("Boolean({expression})")).await != Value::Bool(true) {
            if start.elapsed() > TIMEOUT {
                let text = self.value("document.body.innerText").await;
                panic!("{expression} does not become true:\n{}", text.as_str().unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        start.elapsed()
    }

    /// The text of the first element that the selector matches.
    pub(crate) async fn text(&self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector({selector:?})?.innerText ?? ''")).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Types into the search box, and presses Enter.
    pub(crate) async fn search(&self, text: &str) {
        let quoted = json!(text);
        self.value(&format!(
            "(() => {{ const box = document.getElementById('query'); box.value = {quoted}; \
             box.dispatchEvent(new Event('input')); document.getElementById('search').requestSubmit(); }})()"
        ))
        .await;
    }

    /// Presses a key on the page.
    pub(crate) async fn press(&self, key: &str) {
        self.value(&format!("document.dispatchEvent(new KeyboardEvent('keydown', {{ key: {key:?}, bubbles: true }}))"))
            .await;
    }

    /// Keeps a picture of the page.
    pub(crate) async fn screenshot(&self, name: &str) {
        let image = self.client.screenshot().await.expect("a picture");
        let folder = folder();
        fs::create_dir_all(&folder).expect("a directory");
        fs::write(folder.join(name).with_extension("png"), image).expect("a file");
    }

    /// Ends the browser. No text of the page may show a value that has no text.
    pub(crate) async fn close(self) {
        let text = self.text("body").await;
        let wrong = ["[object", "undefined", "NaN"].into_iter().find(|word| text.contains(word));
        assert_eq!(wrong, None, "{text}");
        self.client.clone().close().await.expect("the browser ends");
    }
}

/// The directory of pictures, which CI keeps.
fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(target).join("page")
}
