use super::plain;

#[test]
fn comments_have_the_names_of_the_samples() {
    let openmetrics = "\
# HELP nodelb_build The version.
# TYPE nodelb_build info
nodelb_build_info{version=\"0.1.0\"} 1
# HELP nodelb_reconciles Rounds.
# TYPE nodelb_reconciles counter
nodelb_reconciles_total 7
# HELP nodelb_services Services.
# TYPE nodelb_services gauge
nodelb_services 3
# HELP process_cpu_seconds CPU time.
# TYPE process_cpu_seconds counter
# UNIT process_cpu_seconds seconds
process_cpu_seconds_total 1.5
# EOF
";
    let expected = "\
# HELP nodelb_build_info The version.
# TYPE nodelb_build_info gauge
nodelb_build_info{version=\"0.1.0\"} 1
# HELP nodelb_reconciles_total Rounds.
# TYPE nodelb_reconciles_total counter
nodelb_reconciles_total 7
# HELP nodelb_services Services.
# TYPE nodelb_services gauge
nodelb_services 3
# HELP process_cpu_seconds_total CPU time.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
";
    assert_eq!(plain(openmetrics), expected);
}
