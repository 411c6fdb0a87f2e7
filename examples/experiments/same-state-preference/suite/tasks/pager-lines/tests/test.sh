#!/bin/sh
cd /testbed
if grep -qx 'lines = 4' settings.ini && grep -qx 'verbose = no' settings.ini; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
