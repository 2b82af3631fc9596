use super::*;

#[test]
fn the_kernels_port_range_is_read() {
    assert_eq!(parse_local_ports("32768\t60999\n"), Some(32_768..=60_999));
    assert_eq!(parse_local_ports("32768"), None);
    let local = local_ports().unwrap();
    assert!(local.start() <= local.end());
}
