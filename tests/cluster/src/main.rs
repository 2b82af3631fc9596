//! The programs of `tests/cluster`: runs upstream's tests, makes traffic, plays the load balancer of a cloud, and writes the
//! tables of the results.

#![forbid(unsafe_code)]

mod balancer;
mod day;
mod ginkgo;
mod handover;
mod http;
mod schedule;
mod table;
mod traffic;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: nodelb-cluster tests REPORT NOT-RUN
       nodelb-cluster not-run REPORT NOT-RUN
       nodelb-cluster run TESTS RESULTS JOBS SECONDS COMMAND...
       nodelb-cluster failed RESULTS
       nodelb-cluster table NODELB KUBE-PROXY DIFFERENCES
       nodelb-cluster traffic STOP FLOW...
       nodelb-cluster handover DIRECTORY EXPECTED
       nodelb-cluster day DIRECTORY
       nodelb-cluster balancer API

tests     prints the names of the tests in a JSON report of ginkgo (of a dry run), except for those that NOT-RUN lists
not-run   prints how many those are, by reason, as Markdown
run       runs each test of the file TESTS with COMMAND, JOBS at the same time, each for at most SECONDS; results in RESULTS
failed    prints the names of the tests that failed
table     prints both results as Markdown; fails if nodelb fails a test that kube-proxy passes, unless DIFFERENCES says why
traffic   runs flows such as `web,new-tcp,192.0.2.7:80` (or long-tcp, new-udp, long-udp) until the file STOP exists
handover  prints what the flows of each phase counted as Markdown; fails if more failed than EXPECTED lists
day       prints the counts of two runs, nodelb's and kube-proxy's, as Markdown; fails if more failed with nodelb
balancer  gives addresses to Services of type LoadBalancer and routes to the nodes, through an API without TLS (kubectl proxy)
";

#[cfg(test)]
#[path = "tests/scripts.rs"]
mod scripts;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(code) => code,
        Err(problem) => {
            // If standard error is closed, there is no way to report it.
            drop(writeln!(io::stderr(), "nodelb-cluster: {problem}"));
            ExitCode::from(64)
        }
    }
}

fn run(words: &[String]) -> Result<ExitCode, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tests", report, not_run] => print(&select(report, not_run)?.0.join("\n")),
        ["not-run", report, not_run] => {
            let row = |(reason, count)| format!("| {count} | {reason} |");
            print(&select(report, not_run)?.1.into_iter().map(row).collect::<Vec<_>>().join("\n"))
        }
        ["run", tests, results, jobs, seconds, command @ ..] if !command.is_empty() => {
            let number = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
            schedule::run(&schedule::Plan {
                tests: read(tests)?.lines().map(ToOwned::to_owned).collect(),
                results: PathBuf::from(results),
                jobs: number(jobs)?,
                limit: Duration::from_secs(number(seconds)?.try_into().map_err(|_negative| "SECONDS is negative")?),
                command: command.iter().map(ToString::to_string).collect(),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        ["failed", results] => print(&table::parse(&read(results)?)?.failed().join("\n")),
        ["table", nodelb, kube_proxy, differences] => {
            let results = (table::parse(&read(nodelb)?)?, table::parse(&read(kube_proxy)?)?);
            judged(&table::compare(&results.0, &results.1, &table::known(&read(differences)?)?))
        }
        ["traffic", stop, flows @ ..] if !flows.is_empty() => {
            let flows = flows.iter().map(|flow| flow.parse()).collect::<Result<Vec<_>, _>>()?;
            print(&traffic::run(Path::new(stop), &flows))
        }
        ["handover", directory, expected] => {
            judged(&handover::table(&handover::phases(Path::new(directory))?, &handover::expected(&read(expected)?)?))
        }
        ["day", directory] => judged(&day::table(&handover::phases(Path::new(directory))?)),
        ["balancer", api] => balancer::run(api),
        _ => Err(format!("unknown arguments\n\n{USAGE}")),
    }
}

fn select(report: &str, not_run: &str) -> Result<(Vec<String>, BTreeMap<String, usize>), String> {
    Ok(ginkgo::select(ginkgo::names(&read(report)?)?, &table::reasons(&read(not_run)?)?))
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))
}

fn print(text: &str) -> Result<ExitCode, String> {
    writeln!(io::stdout(), "{text}").map_err(|error| format!("cannot write: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

/// A text for standard output, and the problems that make the command fail.
#[derive(Debug, PartialEq, Eq)]
struct Judged {
    text: String,
    problems: Vec<String>,
}

fn judged(judged: &Judged) -> Result<ExitCode, String> {
    print(&judged.text)?;
    for problem in &judged.problems {
        writeln!(io::stderr(), "{problem}").map_err(|error| format!("cannot write: {error}"))?;
    }
    Ok(if judged.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
