use super::answer::Format;
use clap::{CommandFactory, Parser};
use nodelb_core::model::service::FrontendKind;
use nodelb_core::state::status::Status;

use super::{Command, CommandLine, DatapathChoice};

fn parse(line: &str) -> Result<Command, clap::Error> {
    CommandLine::try_parse_from(line.split_whitespace()).map(|parsed| parsed.command)
}

#[test]
fn the_definition_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn reads_run_and_its_options() {
    let Command::Run(options) = parse("nodelb run --config /tmp/a.toml --datapath memory").unwrap() else {
        panic!("another command")
    };
    assert_eq!(options.config.unwrap().to_str(), Some("/tmp/a.toml"));
    assert_eq!(options.datapath, Some(DatapathChoice::Memory));
}

#[test]
fn reads_filters_as_typed_values() {
    let line =
        "nodelb frontends --type nodeport --status Held --service shop/web --address ::ffff:10.0.0.1 --output json";
    let Command::Frontends(rows) = parse(line).unwrap() else { panic!("another command") };
    assert_eq!((rows.rows.kind, rows.rows.status), (Some(FrontendKind::NodePort), Some(Status::Held)));
    let rows = rows.rows.addresses;
    assert_eq!(rows.service.unwrap().to_string(), "shop/web");
    assert_eq!(rows.address.unwrap().to_string(), "10.0.0.1");
    assert_eq!(rows.asking.output, Format::Json);
}

#[test]
fn refuses_values_that_are_none() {
    for (line, words) in [
        ("nodelb frontends --service web", "`web` is not a service name"),
        ("nodelb frontends --address 10.0.0.1:80", "`10.0.0.1:80` is not an IP address"),
        ("nodelb frontends --type node", "possible values: ClusterIP, NodePort, ExternalIP, LoadBalancer, Static"),
        (
            "nodelb services --status bad",
            "possible values: OK, NoBackends, LastResort, Held, Kept, Conflict, Refused, Pending",
        ),
        ("nodelb backends --status OK", "unexpected argument '--status'"),
        ("nodelb frontends --output xml", "possible values: text, wide, json, yaml"),
        ("nodelb trace 10.96.7.7:80 --from banana", "expected host, pod, outside, an address"),
        ("nodelb history --since soon", "`soon` is not a time"),
        ("nodelb frontends -n shop -A", "cannot be used with"),
        ("nodelb sources --service a/b", "unexpected argument '--service'"),
        ("nodelb run --datapath magic", "possible values: kernel, memory"),
        ("nodelb", "Usage:"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn the_address_of_the_daemon_may_come_before_and_after_the_command() {
    for line in ["nodelb --admin /x services", "nodelb services --admin /x"] {
        let Command::Services(rows) = parse(line).unwrap() else { panic!("another command") };
        assert_eq!(rows.addresses.asking.admin.unwrap().to_string(), "/x", "{line}");
    }
    let Command::Diagnose(options) = parse("nodelb --admin 127.0.0.1:9 diagnose shop/web").unwrap() else {
        panic!("another command")
    };
    assert_eq!(options.connection.admin.unwrap().to_string(), "127.0.0.1:9");
}

/// Each command's help ends with examples, and each example can be parsed.
#[test]
fn every_example_is_a_command() {
    let root = CommandLine::command();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
    for command in commands.chain([&root]) {
        let help = command.clone().render_long_help().to_string();
        let after = help.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("{} has none", command.get_name()));
        let examples: Vec<&str> = after.lines().take_while(|line| line.starts_with("  ")).collect();
        assert!(!examples.is_empty(), "{}", command.get_name());
        for example in examples {
            let line = example.split(['#', '|', '>']).next().unwrap_or_default();
            assert!(line.contains(command.get_name()), "{example}");
            parse(line.trim()).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
}

#[test]
fn every_command_is_in_one_group_of_the_help() {
    let mut command = super::command();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set()).map(|it| it.get_name().to_owned());
    let mut shown: Vec<String> = shown.collect();
    let mut grouped: Vec<&str> = super::GROUPS.iter().flat_map(|(_, names)| names.split(' ')).collect();
    shown.sort_unstable();
    grouped.sort_unstable();
    assert_eq!(shown, grouped);
    let help = command.render_help().to_string();
    let list = help.split("\n\nOptions:").next().expect("a part");
    let wide: Vec<&str> = list.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "{wide:?}");
    assert!(help.contains("\nLook:\n  status        Show what is wrong"), "{help}");
}
