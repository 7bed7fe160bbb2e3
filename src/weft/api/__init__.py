"""What a user calls: each way into Weft ends in a traced, planned and executable program."""
