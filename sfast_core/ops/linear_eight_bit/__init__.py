"""Linear layers whose operands are 8-bit already, with scales, bias, activation and gate behind the product."""
