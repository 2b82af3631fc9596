//! The processor that figures are measured on.

use std::fs;

/// The name of the processor with its family and model: virtual machines on different processors have the same name.
pub(crate) fn processor() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap();
    let [name, family, model] = ["model name", "cpu family", "model\t"].map(|key| {
        let value = processors.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        value.trim_start_matches([' ', '\t', ':'])
    });
    format!("{name}, family {family}, model {model}")
}
