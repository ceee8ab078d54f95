"""How much noise: releases, accountants, theorems, plans and the signed budget. Sees no data."""
