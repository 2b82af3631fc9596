//! Runs tests as processes, some at the same time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::ginkgo::{self, Outcome, State};

/// What to run.
pub(crate) struct Plan {
    pub(crate) tests: Vec<String>,
    /// The directory of the logs and of `results.tsv`.
    pub(crate) results: PathBuf,
    pub(crate) jobs: usize,
    /// Of one test.
    pub(crate) limit: Duration,
    /// The test program with its arguments.
    pub(crate) command: Vec<String>,
}

/// Runs all tests, the ones that disturb others at the end and alone.
pub(crate) fn run(plan: &Plan) -> Result<(), String> {
    fs::create_dir_all(&plan.results).map_err(|error| format!("cannot create {}: {error}", plan.results.display()))?;
    let path = plan.results.join("results.tsv");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let results = Mutex::new(file.map_err(|error| format!("cannot open {}: {error}", path.display()))?);
    let (alone, together) = split(&plan.tests);
    at_the_same_time(plan, &together, plan.jobs, &results)?;
    at_the_same_time(plan, &alone, 1, &results)
}

/// Tests that must run alone, and the others.
fn split(tests: &[String]) -> (Vec<&str>, Vec<&str>) {
    tests
        .iter()
        .map(String::as_str)
        .filter(|name| !name.is_empty())
        .partition(|name| ["[Serial]", "[Disruptive]"].iter().any(|mark| name.contains(mark)))
}

fn at_the_same_time(plan: &Plan, tests: &[&str], jobs: usize, results: &Mutex<File>) -> Result<(), String> {
    let left = Mutex::new(tests.iter());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1))
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(name) = next else { return Ok(()) };
                        let start = Instant::now();
                        let outcome = one(plan, name).unwrap_or_else(|reason| Outcome { state: State::Failed, reason });
                        let line = line(name, &outcome, start.elapsed());
                        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                        results.write_all(line.as_bytes())?;
                        io::stdout().write_all(line.as_bytes())?;
                    }
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done.map_err(|error: io::Error| format!("cannot write results: {error}")),
            Err(_panic) => Err("a worker panicked".to_owned()),
        })
    })
}

/// A line of `results.tsv`, which [`crate::table::parse`] reads.
pub(crate) fn line(name: &str, outcome: &Outcome, took: Duration) -> String {
    format!("{}\t{}\t{name}\t{}\n", outcome.state.name(), took.as_secs(), outcome.reason.replace('\t', " "))
}

fn one(plan: &Plan, name: &str) -> Result<Outcome, String> {
    let path = plan.results.join(file_name(name));
    let (log, report) = (path.with_extension("log"), path.with_extension("json"));
    let output = File::create(&log).map_err(|error| format!("cannot create {}: {error}", log.display()))?;
    let errors = output.try_clone().map_err(|error| error.to_string())?;
    let (program, arguments) = plan.command.split_first().ok_or("no command")?;
    let child = Command::new(program)
        .args(arguments)
        .arg(format!("--ginkgo.focus={}", ginkgo::focus(name)))
        .arg(format!("--ginkgo.timeout={}s", plan.limit.as_secs()))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    // ginkgo itself ends a test at the limit, and then removes what the test created.
    let status = within(child, plan.limit + Duration::from_secs(90))?;
    let outcome = read(&report, name);
    drop(fs::remove_file(&report));
    match outcome {
        // The test passed, and what follows the test failed.
        Ok(Outcome { state: State::Passed, .. }) if !status.success() => Err(format!("the process failed: {status}")),
        other => other,
    }
}

fn read(report: &Path, name: &str) -> Result<Outcome, String> {
    let text = fs::read_to_string(report).map_err(|error| format!("no report: {error}"))?;
    ginkgo::outcome(&text, name)
}

fn within(mut child: Child, limit: Duration) -> Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < limit => thread::sleep(Duration::from_millis(200)),
            Ok(None) => {
                drop(child.kill());
                drop(child.wait());
                return Err("the process did not end in time".to_owned());
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The name of the files of a test: readable, and different for each.
fn file_name(name: &str) -> String {
    let words: Vec<_> =
        name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let sum = name.bytes().fold(5381_u32, |sum, byte| sum.wrapping_mul(33) ^ u32::from(byte));
    format!("{}-{sum:08x}", words.join("-").chars().take(150).collect::<String>())
}

#[cfg(test)]
#[path = "tests/schedule.rs"]
mod tests;
