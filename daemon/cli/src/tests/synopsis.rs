//! The SYNOPSIS of nodelb(8) is generated from the definition of the command line: `UPDATE=1 cargo test -p nodelb-cli
//! synopsis` writes it.

use clap::{Arg, Command};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/man/nodelb.8");
const BEGIN: &str = ".SH SYNOPSIS\n.nf\n";
const END: &str = ".sp\n";

/// Options that many commands share, each with the name that stands for all of them.
const SHARED: [(&str, &[&str]); 2] =
    [("FILTERS", &["service", "address", "namespace", "all-namespaces"]), ("FORMAT", &["output", "color", "admin"])];

fn escaped(text: &str) -> String {
    text.replace('-', "\\-")
}

fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let is_flag = !arg.get_action().takes_values() || names.is_empty();
    if is_flag { String::new() } else { format!("\\fI{}\\fR", escaped(&names.join(" "))) }
}

fn usage(command: &Command) -> String {
    let mut text = String::new();
    for arg in command.get_positionals() {
        let value = value(arg);
        text += &if arg.is_required_set() { format!(" {value}") } else { format!(" [{value}]") };
    }
    let options = command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    let mut options: Vec<&Arg> = options.filter(|arg| arg.get_long().is_some_and(|long| long != "help")).collect();
    let mut shared = String::new();
    for (name, longs) in SHARED {
        let has = |long: &&str| options.iter().any(|arg| arg.get_long() == Some(long));
        if longs.iter().all(has) {
            options.retain(|arg| !longs.contains(&arg.get_long().unwrap_or_default()));
            shared += &format!(" [\\fI{name}\\fR]");
        }
    }
    for arg in options {
        let value = Some(value(arg)).filter(|value| !value.is_empty()).map(|value| format!(" {value}"));
        text +=
            &format!(" [\\fB{}\\fR{}]", escaped(&format!("--{}", arg.get_long().unwrap())), value.unwrap_or_default());
    }
    text + &shared
}

/// One line for each usage, with all commands that have it.
fn synopsis() -> String {
    let mut lines: Vec<(Vec<String>, String)> = Vec::new();
    let command = crate::command();
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands().filter(shown) {
        let (name, usage) = (format!("\\fB{}\\fR", escaped(command.get_name())), usage(command));
        match lines.iter_mut().find(|(_, known)| *known == usage) {
            Some((names, _)) => names.push(name),
            None => lines.push((vec![name], usage)),
        }
    }
    let line = |(names, usage): &(Vec<String>, String)| format!("\\fBnodelb\\fR {}{usage}\n", names.join("|"));
    lines.iter().map(line).collect()
}

/// Once, it had `services --watch`, and `maps --namespace`, which were refused.
#[test]
fn the_synopsis_of_the_manual_page_is_that_of_the_command_line() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (documented, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{}{END}{after}", synopsis())).unwrap();
        return;
    }
    assert_eq!(documented, synopsis(), "run UPDATE=1 cargo test -p nodelb-cli synopsis");
}
