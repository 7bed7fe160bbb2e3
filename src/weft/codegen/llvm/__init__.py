"""Write the text of LLVM modules: functions, registers, dtypes and conversions between them."""
